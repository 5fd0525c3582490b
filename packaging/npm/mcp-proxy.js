#!/usr/bin/env node
// Runs the binary that the package of this platform has. The binary gets our own stdin,
// stdout and stderr, so nothing stands between it and its client. It gets our signals, too,
// and we end as it does.
'use strict';
const { spawn } = require('node:child_process');

const platform = `@mcp-proxy/${process.platform}-${process.arch}`;
const file = process.platform === 'win32' ? 'mcp-proxy.exe' : 'mcp-proxy';

let binary;
try {
  binary = require.resolve(`${platform}/bin/${file}`);
} catch {
  console.error(`mcp-proxy: the package ${platform} is not installed. Either there is no binary for this platform, or npm was told to leave out optional dependencies.`);
  process.exit(1);
}

const child = spawn(binary, process.argv.slice(2), { stdio: 'inherit', windowsHide: true });
child.on('error', (err) => {
  console.error(`mcp-proxy: ${err.message}`);
  process.exit(1);
});
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'];
for (const signal of signals) {
  // A console of Windows tells all its programs, and a signal to another program kills it there.
  process.on(signal, () => process.platform === 'win32' || child.kill(signal));
}
child.on('exit', (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  signals.forEach((s) => process.removeAllListeners(s));
  process.kill(process.pid, signal);
});
