package job

import (
	"testing"
	"time"
)

// A batch waits while all chunks that workers execute do.
func TestBatchWaits(t *testing.T) {
	day, month := NewWait("day", start.Add(time.Hour)), NewWait("month", start.Add(48*time.Hour))
	chunk := func(worker string, w *Wait) Chunk { return Chunk{Lines: 1, Worker: worker, Wait: w} }
	for name, c := range map[string]struct {
		chunks []Chunk
		after  time.Duration
		want   *Wait
	}{
		"nothing runs":       {[]Chunk{chunk("", nil)}, 0, nil},
		"one runs":           {[]Chunk{chunk("a", &day), chunk("b", nil)}, 0, nil},
		"all wait":           {[]Chunk{chunk("a", &day), chunk("b", &month), chunk("c", &day)}, 0, &month},
		"the others are due": {[]Chunk{chunk("a", &day), chunk("", nil), {Lines: 1, Done: true}}, 0, &day},
		"the period is over": {[]Chunk{chunk("a", &day)}, time.Hour, nil},
	} {
		r := Record{Batch: Batch{Status: InProgress}, Chunks: c.chunks}
		if got := r.Wait(start.Add(c.after)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		if r.Batch.Status = Finalizing; r.Wait(start) != nil {
			t.Errorf("%s: it waits at its end", name)
		}
	}
}

// A chunk that another worker executes, or nobody, waits for nothing.
func TestWaitEndsWithClaim(t *testing.T) {
	wait := NewWait("day", start.Add(time.Hour))
	for name, end := range map[string]func(r *Record) error{
		"released": func(r *Record) error { r.Release(0, "w"); return nil },
		"claimed":  func(r *Record) error { return r.Claim(0, "v", func(string) bool { return false }) },
		"done":     func(r *Record) error { return r.Report(0, "w", Progress{Completed: 1, Wait: &wait}) },
		"running":  func(r *Record) error { return r.Report(0, "w", Progress{}) },
	} {
		r := inProgress("batch_a", time.Hour, 1, 0, 0, 0).Record
		if err := r.Report(0, "w", Progress{Wait: &wait}); err != nil || r.Wait(start) == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := end(&r); err != nil || r.Chunks[0].Wait != nil {
			t.Errorf("%s: %+v, %v", name, r.Chunks[0], err)
		}
	}
}

// A wait survives its header, whatever the name of the key.
func TestWaitHeader(t *testing.T) {
	for _, limit := range []string{"quota of key bob (1 request per day)", `budget of key é, "x"; until=3 (2 USD per month)`} {
		want := NewWait(limit, start)
		header := want.Header()
		for _, c := range header {
			if c < ' ' || c > '~' {
				t.Errorf("%q in %s", c, header)
			}
		}
		if got, err := ParseWait(header); err != nil || got != want {
			t.Errorf("%s: %+v, %v", header, got, err)
		}
	}
	for _, header := range []string{"", "day", `"day"`, `"day"; until=`, `"day; until=1`} {
		if got, err := ParseWait(header); err == nil || got != (Wait{}) {
			t.Errorf("%s: %+v, %v", header, got, err)
		}
	}
}
