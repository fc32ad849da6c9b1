package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
)

var start = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

func everybody(string) bool { return true }
func nobody(string) bool    { return false }

func newRecord(window time.Duration) Record {
	return New("batch_1", Params{InputFileID: "file-1", Endpoint: "/v1/completions", CompletionWindow: window.String()}, window, "acme", "key", start)
}

func TestStates(t *testing.T) {
	chunks := []Chunk{{Lines: 2, Bytes: 20}, {Lines: 1, Bytes: 10}}
	steps := map[string]func(*Record) error{
		"validate": func(r *Record) error {
			if _, ok := r.ClaimValidation("w", nobody); !ok {
				return ErrLostClaim
			}
			return nil
		},
		"start":  func(r *Record) error { return r.Start("w", Input{Chunks: append([]Chunk(nil), chunks...)}, start) },
		"fail":   func(r *Record) error { return r.Fail("w", []Problem{{Code: "x"}}, "file-e", start) },
		"cancel": func(r *Record) error { return r.Cancel(start) },
		"lose":   func(r *Record) error { return r.LoseInput(InputLost("file-1"), start) },
		"expire": func(r *Record) error { r.Advance(start.Add(time.Hour)); return nil },
		"run": func(r *Record) error {
			for i := range r.Chunks {
				if err := errors.Join(r.Claim(i, "w", everybody), r.Report(i, "w", Progress{Completed: r.Chunks[i].Lines})); err != nil {
					return err
				}
			}
			r.Advance(start)
			return nil
		},
		"finish": func(r *Record) error {
			if _, ok := r.ClaimFinish("w", nobody); !ok {
				return ErrLostClaim
			}
			return r.Finish("w", "file-o", "", r.Batch.RequestCounts, Usage{InputTokens: 3}, start)
		},
	}
	for path, want := range map[string]string{
		"":                                   "validating",
		"validate fail":                      "failed",
		"validate fail cancel":               "failed: " + ErrFinal.Error(),
		"validate start":                     "in_progress",
		"start":                              "validating: " + ErrLostClaim.Error(),
		"validate start run":                 "finalizing",
		"validate start run finish":          "completed",
		"validate start run cancel finish":   "completed",
		"validate start finish":              "in_progress: " + ErrLostClaim.Error(),
		"validate start expire":              "finalizing",
		"validate start expire finish":       "expired",
		"expire finish":                      "expired",
		"validate start lose":                "finalizing",
		"validate start lose cancel finish":  "failed",
		"validate lose":                      "validating: " + ErrLostClaim.Error(),
		"validate start cancel lose":         "cancelling: " + ErrLostClaim.Error(),
		"cancel":                             "cancelling",
		"validate cancel start":              "cancelling: " + ErrLostClaim.Error(),
		"cancel cancel finish":               "cancelled",
		"validate start cancel finish":       "cancelled",
		"validate start cancel run":          "cancelling: " + ErrLostClaim.Error() + "\n" + ErrLostClaim.Error(),
		"validate start run finish expire":   "completed",
		"validate start run finish cancel":   "completed: " + ErrFinal.Error(),
		"validate start run finish validate": "completed: " + ErrLostClaim.Error(),
	} {
		r := newRecord(time.Hour)
		var err error
		for step := range strings.FieldsSeq(path) {
			if err = steps[step](&r); err != nil {
				break
			}
		}
		got := string(r.Batch.Status)
		if err != nil {
			got += ": " + err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
}

// The record carries the limits of a user. One of an earlier version has none, which is not the same as no limits.
func TestRecordCarriesUserLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limits *service.KeyLimits
		member string
	}{
		"limits":    {&service.KeyLimits{RequestsPerMinute: 6, TokensPerDay: 7, USDPerMonth: 0.5}, `"user_limits":{"requests_per_minute":6,"tokens_per_day":7,"usd_per_month":0.5}`},
		"unlimited": {&service.KeyLimits{}, `"user_limits":{}`},
		"unknown":   {nil, ""},
	} {
		r := newRecord(time.Hour)
		r.KeyIsUser, r.UserLimits = true, c.limits
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back Record
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s: %+v, %v, want %+v", name, back, err, r)
		}
		if got := string(text); !strings.Contains(got, c.member) || c.limits == nil && strings.Contains(got, "user_limits") {
			t.Errorf("%s: %s, want %s", name, got, c.member)
		}
	}
}

// Workers that claim, report, die and return process every chunk; a chunk has one claim at a time, and the
// counts are those of the reports.
func TestClaimsCoverEveryChunk(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := newRecord(time.Hour)
		total := 0
		var chunks []Chunk
		for range 1 + rng.IntN(8) {
			c := Chunk{Lines: 1 + rng.IntN(4), Bytes: 10}
			total += c.Lines
			chunks = append(chunks, c)
		}
		r.ClaimValidation("w0", everybody)
		if err := r.Start("w0", Input{Chunks: chunks}, start); err != nil {
			t.Fatal(err)
		}
		dead := map[string]bool{}
		live := func(w string) bool { return !dead[w] }
		claims := map[int]string{} // the twin: who may report a chunk
		for step := 0; r.Batch.Status == InProgress; step++ {
			if step > 10_000 {
				t.Fatalf("seed %d: the batch does not end: %+v", seed, r)
			}
			w := fmt.Sprint("w", rng.IntN(3))
			switch rng.IntN(6) {
			case 0:
				dead[w] = !dead[w] && len(dead) < 3
			case 1, 2:
				if dead[w] {
					continue
				}
				if i := r.Claimable(live); i >= 0 {
					if owner := claims[i]; owner != "" && !dead[owner] {
						t.Fatalf("seed %d: chunk %d of %s is offered again", seed, i, owner)
					}
					if err := r.Claim(i, w, live); err != nil {
						t.Fatal(err)
					}
					claims[i] = w
				}
			default:
				i := rng.IntN(len(r.Chunks))
				failed := rng.IntN(r.Chunks[i].Lines + 1)
				err := r.Report(i, w, Progress{Completed: r.Chunks[i].Lines - failed, Failed: failed})
				if (err == nil) != (claims[i] == w) {
					t.Fatalf("seed %d: %s reports chunk %d of %q: %v", seed, w, i, claims[i], err)
				}
				if err == nil {
					claims[i] = "done"
				}
			}
			r.Advance(start)
		}
		if c := r.Batch.RequestCounts; c.Completed+c.Failed != total || c.Total != total || r.FinalStatus != Completed {
			t.Fatalf("seed %d: counts %+v of %d", seed, c, total)
		}
	}
}

func TestParams(t *testing.T) {
	ok := Params{InputFileID: "file-1", Endpoint: "/v1/chat/completions", CompletionWindow: "24h"}
	if w, err := ok.Check(); err != nil || w != 24*time.Hour {
		t.Errorf("%v, %v", w, err)
	}
	long := map[string]string{}
	for i := range 17 {
		long[fmt.Sprint(i)] = "x"
	}
	for param, change := range map[string]func(*Params){
		"input_file_id":     func(p *Params) { p.InputFileID = "" },
		"endpoint":          func(p *Params) { p.Endpoint = "/v1/audio/speech" },
		"completion_window": func(p *Params) { p.CompletionWindow = "1d" },
		"metadata":          func(p *Params) { p.Metadata = long },
	} {
		p := ok
		change(&p)
		_, err := p.Check()
		var bad *ParamError
		if !errors.As(err, &bad) || bad.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	for _, window := range []string{"", "0", "59s", "721h", "-1h"} {
		p := ok
		p.CompletionWindow = window
		if _, err := p.Check(); err == nil {
			t.Errorf("window %q is accepted", window)
		}
	}
}

func TestOutputs(t *testing.T) {
	for want, o := range map[string]Output{
		`{"id":"r","custom_id":"a","response":{"status_code":200,"request_id":"q","body":{"x":"<"}},"error":null}`:                                                         {ID: "r", CustomID: "a", Response: &Response{200, "q", []byte(`{"x":"<"}`)}},
		`{"id":"r","custom_id":"a","response":{"status_code":502,"request_id":"q","body":"bad"},"error":null}`:                                                             {ID: "r", CustomID: "a", Response: &Response{502, "q", []byte(`bad`)}},
		`{"id":"r","custom_id":"a","response":null,"error":{"code":"batch_expired","message":"This request could not be executed before the completion window expired."}}`: UnfinishedOutput("r", "a", Expired),
		`{"id":"r","custom_id":"a","response":null,"error":{"code":"batch_cancelled","message":"This request was not executed because the batch was cancelled."}}`:         UnfinishedOutput("r", "a", Cancelled),
	} {
		if got := string(o.Encode()); got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
		if ok := strings.Contains(want, ":200,"); o.Failed() == ok {
			t.Errorf("%s: failed %v", want, o.Failed())
		}
	}
}

func TestReleasedChunksAreClaimable(t *testing.T) {
	r := newRecord(time.Hour)
	r.ClaimValidation("w", everybody)
	_ = r.Start("w", Input{Chunks: []Chunk{{Lines: 2, Bytes: 5, Skip: 3}, {Lines: 2, Bytes: 5, Skip: 1}}}, start)
	if err := r.Claim(0, "w", everybody); err != nil {
		t.Fatal(err)
	}
	r.Release(0, "other")
	if i := r.Claimable(everybody); i != 1 {
		t.Errorf("chunk %d is claimable, want 1", i)
	}
	if i := r.Claimable(nobody); i != 0 {
		t.Errorf("chunk %d of a dead worker is claimable, want 0", i)
	}
	r.Release(0, "w")
	if i := r.Claimable(everybody); i != 0 {
		t.Errorf("chunk %d is claimable, want 0", i)
	}
	if offset, first := r.Position(1); offset != 9 || first != 2 {
		t.Errorf("chunk 1 starts at byte %d, request %d", offset, first)
	}
}

// Files of a worker that died are reported to the next one, and only then.
func TestStaleFiles(t *testing.T) {
	r := newRecord(time.Hour)
	if stale, ok := r.ClaimValidation("a", everybody, "f1"); !ok || len(stale) != 0 {
		t.Errorf("%v, %v", stale, ok)
	}
	if _, ok := r.ClaimValidation("b", everybody, "f2"); ok {
		t.Error("a live worker loses its claim")
	}
	if stale, ok := r.ClaimValidation("b", nobody, "f2"); !ok || fmt.Sprint(stale) != "[f1]" {
		t.Errorf("%v, %v", stale, ok)
	}
	if err := r.Cancel(start); err != nil {
		t.Fatal(err)
	}
	if stale, ok := r.ClaimFinish("c", everybody, "f3", "f4"); !ok || fmt.Sprint(stale) != "[f2]" {
		t.Errorf("%v, %v", stale, ok)
	}
	if err := r.Finish("c", "f3", "", Counts{}, Usage{}, start); err != nil || len(r.Files) != 0 {
		t.Errorf("%v, %v", r.Files, err)
	}
}
