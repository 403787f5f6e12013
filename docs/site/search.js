// The index of the search has more bytes than any page: it is asked for when somebody first searches.
{
  const { open, send } = XMLHttpRequest.prototype;
  const indexes = new WeakSet();

  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    if (String(url).endsWith("/search_index.json")) indexes.add(this);
    return open.call(this, method, url, ...rest);
  };

  XMLHttpRequest.prototype.send = function (...body) {
    const field = document.forms.namedItem("search")?.query;
    if (!indexes.has(this) || document.activeElement === field) return send.apply(this, body);
    field.addEventListener("focus", () => send.apply(this, body), { once: true });
  };
}
