// Sets the colours before the first paint. The choice is the only thing that this page stores.

document.documentElement.dataset.theme = (() => {
  try {
    return localStorage.getItem('weir-theme') ?? 'auto';
  } catch {
    return 'auto';
  }
})();
