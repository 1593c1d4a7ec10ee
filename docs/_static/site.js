/* The menu of versions: versions.js at the root of the site lists them, so that pages of older versions know newer ones. */
document.addEventListener("DOMContentLoaded", () => {
  const menu = document.querySelector(".site-version");
  if (!menu || !window.TENON_VERSIONS) return;
  const shown = menu.options[0].value;
  menu.replaceChildren(...window.TENON_VERSIONS.map((name) => new Option(name, name, false, name === shown)));
  menu.addEventListener("change", () => {
    location.href = `${menu.dataset.root}${menu.value}/${menu.dataset.language}/index.html`;
  });
});
