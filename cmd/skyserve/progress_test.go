package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Every command draws its progress in the same way: not before the work takes long, then at most five times a second,
// and the line is cleared at the end.
func TestProgressIsDrawnIfWorkTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		drawn := func() string { defer out.Reset(); return out.String() }
		p := newProgress(&out, "fig8a", "runs")
		p.terminal = true
		if p.setProgress(1, 4); drawn() != "" {
			t.Error("it is drawn at once")
		}
		time.Sleep(progressAfter)
		p.setProgress(2, 4)
		if got := drawn(); got != clearLine+"fig8a [##########..........]  50 %, 2 of 4 runs" {
			t.Errorf("got %q", got)
		}
		if p.setShare(2, 4, 0.6); drawn() != "" {
			t.Error("it is drawn again at once")
		}
		time.Sleep(redrawEvery)
		p.setShare(2, 4, 0.7)
		if got := drawn(); !strings.Contains(got, "[##############......]  70 %, 2 of 4 runs") {
			t.Errorf("got %q", got)
		}
		if p.clear(); drawn() != clearLine {
			t.Error("the line is not cleared")
		}
		one := newProgress(&out, "reading", "files")
		one.terminal = true
		one.setProgress(0, 1)
		time.Sleep(progressAfter)
		if one.showProgress(); drawn() != clearLine+"reading" {
			t.Error("a work of one part has a bar")
		}
		one.clear()
	})
}
