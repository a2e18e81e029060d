// Questions to the server, with the token; and the stream of what has changed.

const PLACE = "muster-token";
let token = "";

export function takeToken() {
  const address = new URL(location.href);
  token = address.searchParams.get("token") || "";
  try {
    if (token) localStorage.setItem(PLACE, token);
    else token = localStorage.getItem(PLACE) || "";
  } catch { /* storage may be closed in a frame: then the token lives as long as the page */ }
  if (address.searchParams.has("token")) {
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

const headers = () => ({ Authorization: `Bearer ${token}` });

export async function ask(path, params = {}, options = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== "" && value !== null && value !== undefined) words.set(name, value);
  const query = words.toString();
  let answer;
  try {
    answer = await fetch(`/api/${path}${query ? `?${query}` : ""}`, { ...options, headers: headers() });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw { status: 0, problem: "the page's server does not answer", fix: "start `muster ui` again, and open the address that it prints" };
  }
  let content;
  try { content = await answer.json(); } catch { content = { problem: `the server answered with ${answer.status}` }; }
  if (!answer.ok) throw { status: answer.status, ...content };
  return content;
}

export const tell = (path) => ask(path, {}, { method: "POST" });

// A silent stream says every 15 seconds that it is still there: after so many without a word, a tunnel sleeps or has been cut.
const LONGEST_SILENCE = 40_000;

// Calls back with every change; goes on trying for ever. fetch, not EventSource, which cannot send the token's header.
export async function listen(heard, state) {
  for (;;) {
    let problem = null;
    const giveUp = new AbortController();
    const waited = () => setTimeout(() => giveUp.abort(), LONGEST_SILENCE);
    let timer = waited();
    try {
      const answer = await fetch("/api/changes", { headers: headers(), signal: giveUp.signal });
      if (!answer.ok) throw { status: answer.status };
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        clearTimeout(timer);
        timer = waited();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const kind = /^event: (.*)$/m.exec(part);
          const data = /^data: (.*)$/m.exec(part);
          if (kind && kind[1] === "hello") state(true, JSON.parse(data[1]).trouble);
          if (kind && kind[1] === "change") heard(JSON.parse(data[1]));
        }
      }
    } catch (error) { problem = error; } // the server has gone, or the network sleeps: below it is tried again
    clearTimeout(timer);
    state(false, problem);
    await new Promise((next) => setTimeout(next, 2000));
  }
}
