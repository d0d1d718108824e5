/* What a query finds: `lngeom.claims.names` says how it is read, and `rules` are its data. No document is needed here. */
const rules = {{ rules | tojson }};
const pattern = (source, flags) => new RegExp(source, flags);
const words = text => text.toLowerCase().replace(/(?<![a-z])re[-_]/g, "re").replace(/[-_\s]+/g, " ");

/* The numbers of a list: "9–12, 14" has 9, 10, 11, 12 and 14. */
function numbers(text) {
  return [...text.matchAll(pattern(rules.range, "g"))].flatMap(([, first, last]) =>
    last && !first.includes(".") && +last > +first
      ? Array.from({ length: Math.min(last - first, 99) + 1 }, (_, k) => `${+first + k}`)
      : [first, last].filter(Boolean));
}

/* A condition is a list of keys, one of which is to be named, or a verdict, or a part of a word. */
function conditions(query) {
  const found = [];
  let text = query.toLowerCase();
  for (const [kind, source] of Object.entries(rules.places)) {
    for (const [, list] of text.matchAll(pattern(source, "g"))) found.push({ keys: numbers(list).map(n => kind + n) });
    text = text.replace(pattern(source, "g"), " ");
  }
  for (const [name, source] of Object.entries(rules.methods)) {
    if (pattern(source, "").test(text)) found.push({ keys: [name] });
    text = text.replace(pattern(source, "g"), " ");
  }
  for (const part of words(text).split(" ")) {
    const word = part.replace(/^[.,;:()"'?!“”‘’]+|[.,;:()"'?!“”‘’]+$/g, "");
    if (/^\d{1,3}$/.test(word)) found.push({ keys: [`eq${word}`] });
    else if (/^\d{1,2}(\.\d{1,2})+$/.test(word)) found.push({ keys: Object.keys(rules.places).map(kind => kind + word) });
    else if (rules.verdicts.includes(word)) found.push({ verdict: word });
    else if (word && !rules["passed over"].includes(word)) found.push({ word });
  }
  return found;
}

/* Whether a claim of these keys, words and this verdict meets all conditions; an id finds its claim alone. */
function matcher(query, claims) {
  const id = query.trim().toLowerCase(), exact = claims.filter(claim => claim.ids.includes(id));
  if (exact.length) return claim => exact.includes(claim);
  const asked = conditions(query);
  return claim => asked.every(({ keys, verdict, word }) => keys ? keys.some(key => claim.keys.has(key))
    : verdict ? claim.verdict === verdict : claim.words.includes(word));
}
