// Of a page as it is shown: words of up to twelve letters that are broken, text of too little contrast, and by how many
// pixels it is wider than the window.
() => {
  const broken = [], faint = [];
  const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const isSeen = (element) => {
    if (!element.checkVisibility() || element.closest('style, script, option, title, .skip, pre')) return false;
    const head = element.closest('thead');
    return !head || head.getBoundingClientRect().right > 0;
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement;
    if (!isSeen(parent)) continue;
    for (const word of node.data.matchAll(/\p{L}+/gu)) {
      if (word[0].length > 12) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1) broken.push(word[0]);
    }
    if (!node.data.trim() || parent.closest('svg')) continue;
    const [one, other] = [luminance(numbers(getComputedStyle(parent).color)), luminance(behind(parent))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) faint.push(`${node.data.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return { broken, faint, over: document.documentElement.scrollWidth - window.innerWidth };
};
