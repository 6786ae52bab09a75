//! The parts of the crate `ort` that the program of the docs calls; whoever reads its output runs the models.
pub type Result<T> = std::result::Result<T, std::io::Error>;

pub mod memory {
    #[derive(Default)]
    pub struct Allocator;
}

pub mod value {
    use super::{memory::Allocator, Result};

    #[derive(Clone, Copy, Debug)]
    pub enum TensorElementType {
        Float32,
        Int32,
        Int64,
        Bool,
        Float16,
    }

    pub struct DynTensor {
        pub(crate) dtype: String,
        pub(crate) dims: Vec<i64>,
        pub(crate) bytes: Vec<u8>,
    }

    pub struct DynValue(pub(crate) DynTensor);

    impl DynTensor {
        pub fn new(_: &Allocator, dtype: TensorElementType, dims: &[usize]) -> Result<DynTensor> {
            let size = match dtype {
                TensorElementType::Int64 => 8,
                TensorElementType::Float32 | TensorElementType::Int32 => 4,
                TensorElementType::Float16 => 2,
                TensorElementType::Bool => 1,
            };
            let bytes = vec![0; dims.iter().product::<usize>() * size];
            let dims = dims.iter().map(|&dim| dim as i64).collect();
            Ok(DynTensor { dtype: format!("{:?}", dtype).to_lowercase(), dims, bytes })
        }

        pub fn shape(&self) -> &[i64] {
            &self.dims
        }

        pub fn size(&self) -> Option<usize> {
            Some(self.bytes.len())
        }

        pub fn data_ptr(&self) -> *const u8 {
            self.bytes.as_ptr()
        }

        pub fn data_ptr_mut(&mut self) -> *mut u8 {
            self.bytes.as_mut_ptr()
        }
    }

    impl DynValue {
        pub fn downcast(self) -> Result<DynTensor> {
            Ok(self.0)
        }
    }
}

pub mod session {
    use super::{value::DynTensor, value::DynValue, Result};
    use std::io::{stdin, stdout, Write};
    use std::path::{Path, PathBuf};

    pub struct Session(PathBuf);
    pub struct SessionOutputs;

    impl Session {
        pub fn builder() -> Result<Session> {
            Ok(Session(PathBuf::new()))
        }

        pub fn commit_from_file(self, path: impl AsRef<Path>) -> Result<Session> {
            Ok(Session(path.as_ref().into()))
        }

        /// Prints the inputs.
        pub fn run(&mut self, inputs: Vec<(&'static str, &DynTensor)>) -> Result<SessionOutputs> {
            println!("run {} {}", self.0.file_name().unwrap().to_str().unwrap(), inputs.len());
            for (name, tensor) in inputs {
                println!("{}|{}|{:?}|{:?}", name, tensor.dtype, tensor.dims, tensor.bytes);
            }
            stdout().flush()?;
            stdin().read_line(&mut String::new())?;
            Ok(SessionOutputs)
        }
    }

    impl SessionOutputs {
        /// Reads the next output: the program asks for all of them, in the order of the model.
        pub fn remove(&mut self, _: &str) -> Option<DynValue> {
            let mut line = String::new();
            stdin().read_line(&mut line).ok()?;
            let parts: Vec<&str> = line.trim().split('|').collect();
            let numbers = |text: &str| text.split(',').filter_map(|part| part.parse().ok()).collect::<Vec<i64>>();
            let bytes = numbers(parts[3]).into_iter().map(|byte| byte as u8).collect();
            Some(DynValue(DynTensor { dtype: parts[1].into(), dims: numbers(parts[2]), bytes }))
        }
    }
}
