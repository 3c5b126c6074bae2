import assert from "node:assert/strict";
import { test } from "node:test";
import { arrows, count, hasReached, levelsOf, pathLength, reach, sequentialSteps, work } from "../../annotated_transformer/interactive/information_flow.js";

test("paths and work follow the usual table", () => {
  assert.deepEqual(["recurrence", "convolution", "attention"].map((kind) => pathLength(kind, 7, 3)), [8, 4, 1]);
  assert.deepEqual(["recurrence", "convolution", "attention"].map((kind) => work(kind, 8, 64, 3)), [32768, 98304, 4096]);
  assert.deepEqual([sequentialSteps("recurrence", 9), sequentialSteps("attention", 9)], [9, 1]);
});

test("nothing has been reached before the first step", () => {
  for (const kind of ["recurrence", "convolution", "attention"]) assert.equal(count(reach(kind, 5, 0, 3).flat()), 0);
});

test("recurrence fills row by row, convolution a band, attention all at once", () => {
  assert.deepEqual(reach("recurrence", 3, 2, 3), [[true, false, false], [true, true, false], [false, false, false]]);
  assert.deepEqual(reach("convolution", 4, 1, 2)[3], [false, false, true, true]);
  assert.equal(count(reach("attention", 4, 1, 3).flat()), 16);
  assert.ok(!hasReached("convolution", 1, 2, 9, 3));
});

test("the arrows lead to just those tokens that are said to be reached", () => {
  for (const kind of ["recurrence", "convolution", "attention"]) {
    for (const [n, step, kernel] of [[6, 2, 3], [9, 4, 2], [5, 5, 4], [16, 3, 6]]) {
      const parts = arrows(kind, n, step, kernel);
      const top = levelsOf(kind, n, step, kernel);
      const rows = reach(kind, n, step, kernel);
      for (let i = 0; i < n; i += 1) {
        const on = new Set([`${i},${top}`]);
        for (const [a, p, b, q] of [...parts].reverse()) if (on.has(`${b},${q}`)) on.add(`${a},${p}`);
        for (let j = 0; j < n; j += 1) assert.equal(on.has(`${j},0`), rows[i][j], `${kind} ${n} ${step} ${i} ${j}`);
      }
    }
  }
});
