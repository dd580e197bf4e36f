// Runs before the page is drawn: sets the theme that was chosen last, or leaves the system's.
try {
  const chosen = localStorage.getItem("towpath-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* without storage, the system's theme */ }
