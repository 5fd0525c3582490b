// What the tests here share of the client's side: the TypeScript SDK's client,
// what goes over its wire, and calls that stay at work.

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

/** A transport to a server that is a command. */
export function stdio([command, ...args]) {
  return new StdioClientTransport({ command, args, stderr: "ignore" });
}

/** A transport to a URL: ws:, or one of HTTP's; the older one ends in /sse. */
export function remote(url) {
  const target = new URL(url);
  if (target.protocol === "ws:") return new WebSocketClientTransport(target);
  if (target.pathname === "/sse") return new SSEClientTransport(target);
  return new StreamableHTTPClientTransport(target);
}

/**
 * A connected client that answers questions, what was logged to it, and the
 * frames that went over the wire: [direction, message].
 */
export async function connect(t, open) {
  const transport = await open(t);
  const client = new Client(
    { name: "interop", version: "1.0.0" },
    { capabilities: { sampling: {}, elicitation: {} } },
  );
  const logged = [];
  client.setNotificationHandler(types.LoggingMessageNotificationSchema, ({ params }) => logged.push(params));
  client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => ({
    action: "accept",
    content: { name: params.message },
  }));
  client.setRequestHandler(types.CreateMessageRequestSchema, ({ params }) => ({
    role: "assistant",
    model: "none",
    content: { type: "text", text: `You said: ${params.messages[0].content.text}` },
  }));
  t.after(() => client.close());
  await client.connect(transport);
  return { client, logged, frames: tap(transport) };
}

/** What goes over a transport from now on, as it happens. */
export function tap(transport) {
  const frames = [];
  const { send, onmessage } = transport;
  transport.send = (message, options) => {
    frames.push(["sent", message]);
    return send.call(transport, message, options);
  };
  transport.onmessage = (message, extra) => {
    frames.push(["received", message]);
    onmessage(message, extra);
  };
  return frames;
}

/** The text of a tool's result. */
export async function call(client, name, args = {}, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  assert.ok(!result.isError, JSON.stringify(result));
  return result.content[0].text;
}

/**
 * A call that is at work in the server and stays there, and the frames that
 * answer it.
 */
export async function hold(client, frames, { signal, name = "work", args = { steps: 1, hold: true } } = {}) {
  let working;
  const started = new Promise((resolve) => (working = resolve));
  const result = call(client, name, args, { onprogress: working, signal });
  result.catch(() => {}); // until the caller looks at it
  await Promise.race([started, result]);
  const [, { id }] = frames.findLast(([dir, m]) => dir === "sent" && m.params?.name === name);
  const isAnswer = ([dir, m]) => dir === "received" && m.id === id && !("method" in m);
  return { result, answers: () => frames.filter(isAnswer).map(([, m]) => m) };
}

/** What is said of an upstream, by the cause of its end. */
const words = {
  "signal: killed": "was killed (signal: killed)",
  "link lost": "is unreachable: link lost",
  "connection refused": "is unreachable: connection refused",
  "connection lost": "broke off the connection (connection lost)",
};

/** Whether an error is the one that tells of an upstream's end during a call. */
export function connectionClosed(upstream, cause = "signal: killed") {
  return (err) => {
    assert.equal(err.code, -32603);
    assert.equal(err.message, `MCP error -32603: Connection closed: ${upstream} ${words[cause]}`);
    const { event, ...data } = err.data;
    assert.match(event, /^[0-9a-hjkmnp-tv-z]{8}$/);
    assert.deepEqual(data, {
      reason: "connection_closed",
      upstream,
      cause,
      phase: "in_flight",
      retryable: false,
    });
    return true;
  };
}
