// Before anything is drawn: the theme that was chosen here last; without one, the system's.
try {
  const chosen = localStorage.getItem("towpath-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's */ }
