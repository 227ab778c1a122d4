(() => {
  const box = document.getElementById("problems");
  if (!box) return;
  const rows = [...box.querySelectorAll("details.problem")], heads = [...box.querySelectorAll(".head span")];
  const text = rows.map(row => row.textContent.toLowerCase());
  const filter = document.getElementById("filter"), count = document.getElementById("count");
  document.querySelector(".controls").hidden = false;
  const key = (row, column) => row.querySelectorAll("summary span")[column].dataset.key;
  const names = new Intl.Collator("en", {numeric: true});
  function sort(head) {
    const column = Number(head.dataset.column), down = head.classList.contains("up");
    heads.forEach(other => other.classList.remove("up", "down"));
    head.classList.add(down ? "down" : "up");
    const sign = down ? -1 : 1;
    [...rows].sort((a, b) => {
      const x = key(a, column), y = key(b, column);
      if (column === 0) return sign * names.compare(x, y);
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (Number(x) - Number(y));
    }).forEach(row => box.appendChild(row));
  }
  heads.forEach(head => {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
  });
  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every(word => text[index].includes(word));
      shown += !row.hidden;
    });
    count.textContent = shown + " of " + rows.length;
  }
  filter.addEventListener("input", show);
  document.getElementById("unfold").addEventListener("click", event => {
    const open = event.target.textContent === "unfold all";
    rows.forEach(row => { row.open = open && !row.hidden; });
    event.target.textContent = open ? "fold all" : "unfold all";
  });
  show();
})();
