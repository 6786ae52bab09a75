// Elements of the page. Names from a model are only ever text of an element, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a text is a text node.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** An element of a drawing.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** Let long names be broken after a slash.
 * @param {ParentNode} part */
export function breakable(part) {
  for (const place of part.querySelectorAll("h1, h2, h3 a, code, code a, li a")) {
    for (const child of [...place.childNodes]) {
      const pieces = child instanceof Text ? child.data.split(/(?<=[^\s/]\/)(?=[^/])/) : [];
      if (pieces.length > 1) child.replaceWith(...withBreaks(pieces));
    }
  }
}

/** Let each command be copied.
 * @param {ParentNode} part */
export function copyable(part) {
  for (const commands of part.querySelectorAll("pre")) {
    commands.replaceWith(...(commands.textContent ?? "").split("\n").map((command) => {
      const [shown, button] = [element("pre", {}, command), element("button", { type: "button", "aria-label": `Copy ${command}` }, "Copy")];
      button.addEventListener("click", async () => {
        getSelection()?.selectAllChildren(shown); // what is copied is seen, and can be where a browser forbids to write it
        await navigator.clipboard?.writeText(command).catch(() => document.execCommand("copy"));
        button.textContent = "Copied";
        setTimeout(() => button.replaceChildren("Copy"), 2000);
      });
      return element("div", { class: "command" }, shown, button);
    }));
  }
}

/** Pieces of a text that may be broken between them.
 * @param {string[]} pieces
 * @returns {(Node | string)[]} */
export function withBreaks(pieces) {
  return pieces.flatMap((piece, at) => (at ? [element("wbr"), piece] : [piece]));
}

/** The address of a node, or of a value, on this page.
 * @param {number} model
 * @param {string} name
 * @param {"node" | "value" | "show"} kind `show` for a node in the drawing */
export function address(model, name, kind = "node") {
  return `#${model ? `model=${model}&` : ""}${kind}=${encodeURIComponent(name)}`;
}

/** A text that is not too long: its beginning, or its end.
 * @param {string} text
 * @param {number} most
 * @param {boolean} [isEnd] */
export function cut(text, most, isEnd = false) {
  if (text.length <= most) return text;
  return isEnd ? `…${text.slice(1 - most)}` : `${text.slice(0, most - 1)}…`;
}
