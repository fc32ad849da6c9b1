package telemetry

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
)

func pt(minute int64, balancer, region, model string, tier service.Tier, prompt, cached int64) Point {
	return Point{
		Minute: minute, Balancer: balancer, Region: service.Region(region), Model: model, Tier: tier,
		PromptTokens: prompt, CachedTokens: cached, Requests: 1,
	}
}

// A quiet minute of a region that was seen is zero; one that nobody saw is unknown.
func TestHistoryGaps(t *testing.T) {
	h, err := NewHistory([]Point{
		pt(100, "us-0", "us", "m", "IW-F", 10, 4),
		pt(100, "us-1", "us", "m", "IW-F", 20, 2),
		pt(101, "us-0", "us", "n", "IW-F", 1, 0),
		pt(103, "us-0", "us", "m", "IW-F", 7, 0),
		pt(103, "eu-0", "eu", "m", "IW-F", 9, 9),
		pt(100, "us-0", "us", "m", "IW-F", 11, 5), // again: the later one counts
	})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, s := range h.Series {
		fmt.Fprintf(&got, "%s %v\n", s.SeriesKey, s.PromptTokens)
	}
	want := "eu m IW-F [NaN NaN NaN 9]\nus m IW-F [31 0 NaN 7]\nus n IW-F [0 1 NaN 0]\n"
	if got.String() != want || h.First != 100 || h.Minutes != 4 {
		t.Fatalf("from %d, %d minutes:\n%swant\n%s", h.First, h.Minutes, &got, want)
	}
	if rate, ok := h.HitRate("m", 60); !ok || math.Abs(rate-16.0/47) > 1e-12 {
		t.Fatalf("hit rate %v, %v", rate, ok)
	}
	if rate, ok := h.HitRate("m", 1); !ok || rate != 9.0/16 {
		t.Fatalf("hit rate of the last minute %v, %v", rate, ok)
	}
	if _, ok := h.HitRate("nobody", 60); ok {
		t.Fatal("a hit rate out of nothing")
	}
}

func TestHistoryBefore(t *testing.T) {
	h, err := NewHistory([]Point{pt(10, "a", "us", "m", "NIW", 1, 0), pt(12, "a", "us", "m", "NIW", 3, 0)})
	if err != nil {
		t.Fatal(err)
	}
	for minute, want := range map[int64]int{0: 0, 10: 0, 11: 1, 12: 2, 13: 3, 99: 3} {
		b := h.Before(minute)
		if b.Minutes != want || len(b.Series[0].PromptTokens) != want {
			t.Errorf("before %d: %d minutes, want %d", minute, b.Minutes, want)
		}
	}
	if h.End() != 13 {
		t.Fatalf("end %d", h.End())
	}
}

func TestHistoryBegun(t *testing.T) {
	h, err := NewHistory([]Point{pt(10, "a", "us", "m", "NIW", 100, 0), pt(11, "a", "us", "m", "NIW", 30, 15)})
	if err != nil {
		t.Fatal(err)
	}
	b := h.Begun(11, 0.5)
	if s := b.Series[0]; b.Minutes != 2 || s.PromptTokens[0] != 100 || s.PromptTokens[1] != 60 || s.CachedTokens[1] != 30 {
		t.Errorf("half of minute 11 went on to %+v", b.Series)
	}
	if h.Series[0].PromptTokens[1] != 30 {
		t.Error("the history itself changed")
	}
	if b := h.Begun(12, 0.5); b.Minutes != 2 || b.Series[0].PromptTokens[1] != 30 {
		t.Errorf("nothing is known of minute 12, got %+v", b.Series)
	}
}

func TestHistoryRefuses(t *testing.T) {
	for name, points := range map[string][]Point{
		"span":     {pt(0, "a", "us", "m", "NIW", 1, 0), pt(29_000_000, "a", "us", "m", "NIW", 1, 0)},
		"negative": {pt(0, "a", "us", "m", "NIW", -1, 0)},
		"before":   {pt(-5, "a", "us", "m", "NIW", 1, 0)},
	} {
		if _, err := NewHistory(points); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if h, err := NewHistory(nil); err != nil || h.Minutes != 0 || len(h.Series) != 0 {
		t.Fatalf("no points: %+v, %v", h, err)
	}
}

// The order in which points arrive does not matter, and tokens are conserved.
func TestHistoryConserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "n")
		var points []Point
		var total int64
		for i := range n {
			p := pt(rapid.Int64Range(0, 9).Draw(t, "minute"), fmt.Sprint("lb-", i),
				rapid.SampledFrom([]string{"us", "eu"}).Draw(t, "region"),
				rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), "IW-F", rapid.Int64Range(0, 1000).Draw(t, "tokens"), 0)
			points, total = append(points, p), total+p.PromptTokens
		}
		a, err := NewHistory(points)
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewHistory(rapid.Permutation(points).Draw(t, "order"))
		if err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("order matters: %v\n%v\n%v", err, a, b)
		}
		var sum float64
		for _, s := range a.Series {
			for _, v := range s.PromptTokens {
				if !math.IsNaN(v) {
					sum += v
				}
			}
		}
		if sum != float64(total) {
			t.Fatalf("%v tokens of %d", sum, total)
		}
	})
}

func TestReadHistory(t *testing.T) {
	want := pt(28401120, "", "us", "m", "IW-N", 100, 40)
	want.Requests = 3
	withBalancer := want
	withBalancer.Balancer = "lb-0"
	sage := Point{Minute: 0, Region: AnyRegion, Model: "A", Tier: TierInteractive, PromptTokens: 137536}
	for name, c := range map[string]struct {
		text string
		want Point
	}{
		"csv by minute": {"minute,region,model,tier,prompt_tokens,cached_tokens,requests\n28401120,us,m,IW-N,100,40,3\n", want},
		"csv by time":   {"at,region,model,tier,prompt_tokens,cached_tokens,requests\n2024-01-01T00:00:00Z,us,m,iw-n,100,40,3\n", want},
		"csv decimals":  {"\ufeffTier, Prompt_Tokens ,cached_tokens,requests,model,region,minute\nIW-N,99.6,40,3,m,us,28401120\r\n", want},
		"sageserve":     {"minute,model,tier,prompt_tokens,exact\n0,A,IW,137536,1\n", sage},
		"json lines":    {`{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}` + "\n", withBalancer},
		"json list":     {`[{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}]`, withBalancer},
		"admin answer":  {`{"complete":true,"points":[{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}]}`, withBalancer},
	} {
		t.Run(name, func(t *testing.T) {
			for _, in := range [][]byte{[]byte(c.text), zip(t, c.text)} {
				got, err := ReadHistory("h", bytes.NewReader(in))
				if err != nil || len(got) != 1 || got[0] != c.want {
					t.Fatalf("got %+v, %v; want %+v", got, err, c.want)
				}
			}
		})
	}
	if got, err := ReadHistory("h", strings.NewReader(`{"complete":true,"points":[]}`)); err != nil || len(got) != 0 {
		t.Fatalf("an answer without points: %v, %v", got, err)
	}
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadHistoryErrors(t *testing.T) {
	const head = "minute,region,model,tier,prompt_tokens,cached_tokens\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"  \n", "h.csv: the file is empty"},
		"no minute":   {"model,prompt_tokens\nm,1\n", `h.csv:1: header: want a column minute or at, got "model,prompt_tokens"`},
		"no tokens":   {"minute,model\n1,m\n", `h.csv:1: header: want a column prompt_tokens`},
		"bad minute":  {head + "1,us,m,IW-F,5,0\nx,us,m,IW-F,5,0\n", `h.csv:3: minute: want a whole number of minutes since 1970, got "x"`},
		"bad time":    {"at,model,prompt_tokens\nyesterday,m,1\n", `h.csv:2: at: want a time`},
		"bad count":   {head + "1,us,m,IW-F,many,0\n", `h.csv:2: prompt_tokens: want a count, got "many"`},
		"no count":    {head + "1,us,m,IW-F,,0\n", `h.csv:2: prompt_tokens: want a count, got ""`},
		"nan":         {head + "1,us,m,IW-F,NaN,0\n", `h.csv:2: prompt_tokens: want a count, got "NaN"`},
		"negative":    {head + "1,us,m,IW-F,-5,0\n", `h.csv:2: prompt_tokens: must not be negative, got "-5"`},
		"bad tier":    {head + "1,us,m,gold,5,0\n", `h.csv:2: tier: want IW-F, IW-N, NIW or IW, got "gold"`},
		"no model":    {head + "1,us,,IW-F,5,0\n", `h.csv:2: model: must not be empty`},
		"cached":      {head + "1,us,m,IW-F,5,6\n", `h.csv:2: cached_tokens: must not exceed prompt_tokens (5), got "6"`},
		"twice":       {head + "1,us,m,IW-F,5,0\n1,us,m,IW-F,6,0\n", `h.csv:3: row: same minute, region, model and tier as line 2`},
		"short row":   {head + "1,us\n", "line 2: wrong number of fields"},
		"json minute": {"{\"model\":\"m\",\"prompt_tokens\":1}\n", `h.csv:1: minute: want minutes since 1970`},
		"json type":   {"{\"minute\":1,\"model\":\"m\",\"prompt_tokens\":1}\n{\"minute\":\"x\"}\n", "h.csv:2: json:"},
		"json broken": {"{\"minute\":1,\n", "h.csv:1: unexpected EOF"},
		"json tokens": {"\n\n{\"minute\":1,\"model\":\"m\"}\n", "h.csv:3: prompt_tokens: want a count"},
		"gzip":        {"\x1f\x8bnonsense", "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadHistory("h.csv", strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want it to say %q", err, c.want)
			}
		})
	}
}

func FuzzReadHistory(f *testing.F) {
	f.Add([]byte("minute,model,tier,prompt_tokens,exact\n0,A,IW,137536,1\n"))
	f.Add([]byte(`{"complete":true,"points":[{"minute":1,"model":"m","prompt_tokens":2}]}`))
	f.Add([]byte(`[[]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		points, err := ReadHistory("f", bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, p := range points {
			if p.Model == "" || p.Region == "" || p.Tier == "" || p.PromptTokens < p.CachedTokens || p.CachedTokens < 0 {
				t.Fatalf("accepted %+v", p)
			}
		}
	})
}
