package telemetry

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"skyserve/internal/service"
)

func pt(minute int64, balancer, region, model string, tier service.Tier, prompt, cached int64) Point {
	return Point{
		Minute: minute, Balancer: balancer, Region: service.Region(region), Model: model, Tier: tier,
		PromptTokens: prompt, CachedTokens: cached, Requests: 1,
	}
}

func TestReadHistory(t *testing.T) {
	want := pt(28401120, "", "us", "m", "IW-N", 100, 40)
	want.Requests = 3
	withBalancer := want
	withBalancer.Balancer = "lb-0"
	sage := Point{Minute: 0, Region: service.AnyRegion, Model: "A", Tier: TierInteractive, PromptTokens: 137536}
	for name, c := range map[string]struct {
		text string
		want Point
	}{
		"csv by minute":  {"minute,region,model,tier,prompt_tokens,cached_tokens,requests\n28401120,us,m,IW-N,100,40,3\n", want},
		"csv by time":    {"at,region,model,tier,prompt_tokens,cached_tokens,requests\n2024-01-01T00:00:00Z,us,m,iw-n,100,40,3\n", want},
		"csv decimals":   {"\ufeffTier, Prompt_Tokens ,cached_tokens,requests,model,region,minute\nIW-N,99.6,40,3,m,us,28401120\r\n", want},
		"sageserve":      {"minute,model,tier,prompt_tokens,exact\n0,A,IW,137536,1\n", sage},
		"json lines":     {`{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}` + "\n", withBalancer},
		"json list":      {`[{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}]`, withBalancer},
		"admin response": {`{"complete":true,"points":[{"minute":28401120,"balancer":"lb-0","region":"us","model":"m","tier":"IW-N","requests":3,"prompt_tokens":100,"cached_tokens":40}]}`, withBalancer},
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
		t.Fatalf("a response without points: %v, %v", got, err)
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
		"no minute":   {"model,prompt_tokens\nm,1\n", `h.csv:1: header must contain the column "minute" or "at", got "model,prompt_tokens"`},
		"no tokens":   {"minute,model\n1,m\n", `h.csv:1: header must contain the column "prompt_tokens"`},
		"two columns": {"minute,model,prompt_tokens,Prompt_Tokens\n1,m,5,900\n", `reading history h.csv:1: duplicate column "prompt_tokens": rename or remove one`},
		"bad minute":  {head + "1,us,m,IW-F,5,0\nx,us,m,IW-F,5,0\n", `h.csv:3: minute must be a whole number of minutes since 1970, got "x"`},
		"seconds":     {head + "1800000000,us,m,IW-F,5,0\n", `h.csv:2: minute must be before the year 2200 (minutes since 1970, not seconds), got "1800000000"`},
		"json millis": {"{\"minute\":1800000000000,\"model\":\"m\",\"prompt_tokens\":1}\n", `h.csv:1: minute must be before the year 2200 (minutes since 1970, not seconds), got "1800000000000"`},
		"huge count":  {head + "1,us,m,IW-F,9e18,0\n", `h.csv:2: prompt_tokens must be at most 1e+15, got "9e18"`},
		"bad time":    {"at,model,prompt_tokens\nyesterday,m,1\n", `h.csv:2: at must be a time`},
		"bad count":   {head + "1,us,m,IW-F,many,0\n", `h.csv:2: prompt_tokens must be a count, got "many"`},
		"no count":    {head + "1,us,m,IW-F,,0\n", `h.csv:2: prompt_tokens must be a count, got ""`},
		"nan":         {head + "1,us,m,IW-F,NaN,0\n", `h.csv:2: prompt_tokens must be a count, got "NaN"`},
		"negative":    {head + "1,us,m,IW-F,-5,0\n", `h.csv:2: prompt_tokens must not be negative, got "-5"`},
		"bad tier":    {head + "1,us,m,gold,5,0\n", `h.csv:2: tier must be fast (IW-F), normal (IW-N), deferred (NIW) or IW (fast and normal), got "gold"`},
		"no model":    {head + "1,us,,IW-F,5,0\n", `h.csv:2: model must not be empty`},
		"no object":   {"[1,2]", "h.csv:1: must be an object, got a JSON number"},
		"wrong type":  {`[{"minute":"noon"}]`, "h.csv:1: minute: must be a number, got a JSON string"},
		"cached":      {head + "1,us,m,IW-F,5,6\n", `h.csv:2: cached_tokens must not exceed prompt_tokens (5), got "6"`},
		"twice":       {head + "1,us,m,IW-F,5,0\n1,us,m,IW-F,6,0\n", `h.csv:3: row must differ from line 2 in minute, region, model or tier`},
		"short row":   {head + "1,us\n", "line 2: wrong number of fields"},
		"json minute": {"{\"model\":\"m\",\"prompt_tokens\":1}\n", `h.csv:1: minute must be a whole number of minutes since 1970`},
		"json type":   {"{\"minute\":1,\"model\":\"m\",\"prompt_tokens\":1}\n{\"minute\":\"x\"}\n", "h.csv:2: minute: must be a number, got a JSON string"},
		"json broken": {"{\"minute\":1,\n", "h.csv:1: unexpected EOF"},
		"json tokens": {"\n\n{\"minute\":1,\"model\":\"m\"}\n", "h.csv:3: prompt_tokens must be a count"},
		"gzip":        {"\x1f\x8bnonsense", "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadHistory("h.csv", strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want it to contain %q", err, c.want)
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
