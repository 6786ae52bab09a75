/* Host contract of lowered models for $target, written by `graphkit contract`. */
#ifndef HOST_CONTRACT_H
#define HOST_CONTRACT_H

#include <stddef.h>
$numbers
#define HOST_MASK_FLOOR (${floor}f) /* Added to scores that do not count. */
#define HOST_MASK_FLOOR_HALF $floor_half /* The bits of the nearest finite float16. */
#define HOST_MAX_RANK $max_rank /* The most dims of a tensor. */
#define HOST_FILE_COUNT $file_count
#define HOST_TABLE_COUNT $table_count
#define HOST_STATE_COUNT $state_count
#define HOST_METHOD_COUNT $method_count
$lists

typedef enum HostSource { /* who makes an input */
$sources
} HostSource;

typedef enum HostBy { /* what chooses rows of a table */
$choices
} HostBy;

typedef struct HostFile { /* a file beside the contract, as it was when that was written */
    const char *name;
    size_t bytes;
    const char *sha256; /* in hexadecimal digits */
} HostFile;

typedef struct HostTable { /* rows in a raw little-endian file */
    const char *name;
    const char *file;
    const char *dtype;
    size_t offset;    /* of the first row, in bytes */
    size_t rows;
    size_t row_bytes; /* from one row to the next */
} HostTable;

typedef struct HostState { /* a tensor that the host keeps between steps */
    const char *name;
    const char *dtype;
    size_t rank;
    size_t dims[HOST_MAX_RANK];
    int axis;          /* along which its slots lie; -1 where it does not grow */
    size_t slots;      /* how many; 0 where it does not grow */
    size_t slot_bytes; /* of one slot that lie together, from each to the next */
    size_t blocks;     /* how often the slots are repeated */
    size_t bytes;
} HostState;

typedef struct HostPort { /* an input or output of a method */
    const char *name;
    const char *dtype;
    size_t rank;
    size_t dims[HOST_MAX_RANK];
    size_t item_bytes;
    size_t bytes;
    HostSource source; /* HOST_SOURCE_NONE for an output */
    int of;            /* the table, the state, or the method that it is made of; -1 for none */
    int output;        /* of that method; -1 for none */
    HostBy by;
    size_t window;     /* of a mask over slots: how many tokens count, the new one included; 0 for all */
    int writes;        /* the state that an output goes to; -1 for none */
} HostPort;

typedef struct HostMethod { /* a lowered model */
    const char *name;
    const char *file;
    int each_step; /* 1: runs for each token; 0: once for a source */
    const HostPort *inputs;
    size_t input_count;
    const HostPort *outputs;
    size_t output_count;
} HostMethod;$places$arrays

#endif /* HOST_CONTRACT_H */
