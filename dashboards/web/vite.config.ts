// Builds dist/: index.html and hashed assets, all from this origin, with relative addresses so that the page also works
// behind a path prefix. `npm run dev` passes API calls on to the server at $EVENKEEL_URL (default port 8080 on
// loopback).
import { defineConfig } from 'vitest/config';

const server = process.env['EVENKEEL_URL'] ?? 'http://127.0.0.1:8080';

export default defineConfig({
  base: './',
  build: { outDir: 'dist', assetsInlineLimit: 0, target: 'es2022' },
  server: { proxy: { '/v1': server, '/sql': server } },
  test: { include: ['tests/unit/**/*.test.ts'], environment: 'node' },
});
