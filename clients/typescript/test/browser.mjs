// Runs pages in Chromium: node browser.mjs CHROMIUM BROKER LISTED OTHER FOLDER.
// LISTED and OTHER serve FOLDER, from an origin that the broker allows and from
// one that it does not. Topics own-*, listed-* and other-* are there for each transport.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const [executablePath, broker, listed, other, folder] = process.argv.slice(2);
const script = join(folder, "page.js");
await build({ entryPoints: [fileURLToPath(new URL("page.mjs", import.meta.url))], bundle: true, format: "iife", target: "es2022", outfile: script, logLevel: "warning" });
await writeFile(join(folder, "index.html"), '<!doctype html><title>page</title><script src="page.js"></script>');

// Root has no sandbox; a small /dev/shm is no reason to fail.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"], timeout: 120_000 });
try {
  const open = async (url, options) => {
    const page = await (await browser.newContext(options)).newPage();
    await page.goto(url, { timeout: 120_000 });
    assert.equal(await page.evaluate("location.origin"), new URL(url).origin);
    return page;
  };
  // The broker's own page is text and lets no script run: this one is injected.
  const own = await open(broker, { bypassCSP: true });
  await own.addScriptTag({ path: script });
  const pages = { own, listed: await open(listed), other: await open(other) };
  for (const kind of ["connect", "grpc-web"]) {
    for (const [name, page] of Object.entries(pages)) {
      const said = await page.evaluate(([fn, ...args]) => globalThis[fn](...args), [name === "other" ? "runRefused" : "run", broker, kind, `${name}-${kind}`]);
      assert.equal(said, "ok", `${name}, ${kind}`);
      console.log(name, kind, said);
    }
  }
  assert.equal(await inPage(pages.other, "runAround", "other-connect"), "ok");
  for (const name of ["listed", "other"]) assert.equal(await inPage(pages[name], "runDelete", `${name}-connect`), "ok");
} finally {
  await browser.close();
}

function inPage(page, fn, topic) {
  return page.evaluate(([fn, ...args]) => globalThis[fn](...args), [fn, broker, topic]);
}
