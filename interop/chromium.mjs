// A real browser for the tests, and what it must not have done when they are over.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";
import { here } from "./proxy.mjs";

const found = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

// Without these it asks others for updates.
const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** A browser. CHROMIUM names another one. */
export function launch() {
  const args = process.getuid?.() === 0 ? [...quiet, "--no-sandbox"] : quiet;
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? found, args });
}

export const desk = { viewport: { width: 1400, height: 900 } };
export const phone = { viewport: { width: 390, height: 844 }, hasTouch: true };

/**
 * A page in a window of its own, at a URL. It has `complaints`: what it wrote to its console,
 * what it threw, and what it asked of others. Refusals that a test provokes are none.
 */
export async function visit(browser, url, options = desk) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const own = new URL(url).origin;
  page.complaints = [];
  page.on("console", (m) => !/status of (401|404|503)|ERR_CONNECTION_REFUSED/.test(m.text()) && page.complaints.push(m.text()));
  page.on("pageerror", (err) => page.complaints.push(err.stack));
  page.on("request", (r) => new URL(r.url()).origin !== own && page.complaints.push(`asked for ${r.url()}`));
  await page.goto(url);
  return page;
}

/** Gives a page the token that it asks for. */
export async function logIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.keyboard.press("Enter");
}

/** A picture of a page for people to look at, in out/. */
export const picture = (page, name) => page.screenshot({ path: here(`out/page-${name}.png`), fullPage: true });

/** What cannot be read on a page in its colours: text of less contrast than WCAG's 4.5 to 1. */
export function unreadable(page) {
  return page.evaluate(() => {
    const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
    const luminance = (rgb) => {
      const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
      for (let e = element; e; e = e.parentElement) {
        const [r, g, b, a = 1] = channels(getComputedStyle(e).backgroundColor);
        if (a > 0) return [r, g, b];
      }
      return [255, 255, 255];
    };
    const all = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || !element.checkVisibility() || element.matches("script, option, noscript *")) continue;
      const front = luminance(channels(getComputedStyle(element).color).slice(0, 3));
      const back = luminance(behind(element));
      const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
      if (contrast < 4.5) all.push(`${contrast.toFixed(2)}: ${node.data.trim().slice(0, 40)} (${element.className})`);
    }
    return all;
  });
}

/** What a reader of a screen, or somebody on a phone, misses: controls without a name, a page wider than the window. */
export async function faults(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, a, [role=img], [role=log]")].filter((e) => e.checkVisibility()).filter((e) =>
      !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.getAttribute("aria-labelledby"))).map((e) => e.outerHTML));
  return [...nameless, ...(await unreadable(page)), ...(wide > 0 ? [`${wide} pixels too wide`] : [])];
}

/** Presses Tab until the element that a selector names has the focus. */
export async function tabTo(page, selector, most = 60) {
  for (let i = 0; i < most; i++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate((s) => document.activeElement.matches(s), selector)) return;
  }
  assert.fail(`the keyboard does not lead to ${selector}`);
}
