package demand

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/forecast"
)

// describe writes a history as text.
func describe(h *History) string {
	var b strings.Builder
	for _, k := range h.Series {
		fmt.Fprintf(&b, "%s, %s by %s from %s: %v\n", k.SeriesKey, k.Unit, forecast.ShortDuration(k.Step), k.At(0).Format("2006-01-02T15:04"), k.Values)
	}
	for _, n := range h.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // writing to a buffer never fails
	_ = z.Close()
	return b.String()
}

const (
	partlyOne = "note: 1 request omitted: the trace covers only a part of its minute\n"
	partlyTwo = "note: 2 requests omitted: the trace covers only a part of their minutes\n"
)

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		o    Options
		want string
	}{
		"a summer in local time": {
			"at,region,model,prompt_tokens\n2025-03-30T01:59:00+01:00,eu,m,5\n2025-03-30T03:00:00+02:00,eu,m,7\n2025-10-26T02:59:00+02:00,eu,m,0\n",
			Options{Step: 300 * 24 * time.Hour},
			"reading history h: resampling eu m fast: 302401 minutes of history has no whole step of 7200h",
		},
		"the clock goes forward": {
			"at,region,model,prompt_tokens\n2025-03-30T01:59:00+01:00,eu,m,5\n2025-03-30T03:00:00+02:00,eu,m,7\n",
			Options{},
			"eu m fast, prompt tokens by 1m from 2025-03-30T00:59: [5 7]\n",
		},
		"the clock goes back": {
			"at,region,model,prompt_tokens\n2025-10-26T02:59:00+02:00,eu,m,5\n2025-10-26T02:00:00+01:00,eu,m,7\n",
			Options{},
			"eu m fast, prompt tokens by 1m from 2025-10-26T00:59: [5 7]\n",
		},
		"late, twice, a gap": {
			`{"minute":100,"balancer":"a","model":"m","prompt_tokens":5}` + "\n" + `{"minute":103,"balancer":"a","model":"m","prompt_tokens":6}` + "\n" +
				`{"minute":101,"balancer":"a","model":"m","prompt_tokens":7}` + "\n" + `{"minute":100,"balancer":"a","model":"m","prompt_tokens":8}` + "\n",
			Options{},
			"m fast, prompt tokens by 1m from 1970-01-01T01:40: [8 7 NaN 6]\n" +
				"note: 1 duplicate sample (first: m fast at 1970-01-01T01:40:00Z): the last one is used\n" +
				"note: 1 sample out of order (first: m fast at 1970-01-01T01:41:00Z): sorted\n" +
				"note: 1 gap (first: m fast at 1970-01-01T01:42:00Z): 1 minute in total are unknown\n",
		},
		"requests": {
			"minute,model,tier,prompt_tokens,requests\n0,m,IW,5,2\n1,m,IW,6,3\n",
			Options{Requests: true, Step: 2 * time.Minute},
			"m IW, requests by 2m from 1970-01-01T00:00: [5]\n",
		},
		"rows by the hour": {
			"at,model,prompt_tokens\n2025-01-31T12:00:00Z,m,3600\n2025-01-31T13:00:00Z,m,7200\n2025-01-31T15:00:00Z,m,60\n2025-01-31T16:00:00Z,m,0\n",
			Options{},
			"m fast, prompt tokens by 1h from 2025-01-31T12:00: [3600 7200 NaN 60 0]\n" +
				"note: rows are 1h apart: each counts for 1h (if each counts for 1 minute, add a row of 0 prompt tokens for the minute after each)\n" +
				"note: 1 gap (first: m fast at 2025-01-31T14:00:00Z): 1 hour in total are unknown\n",
		},
		"two series by five minutes": {
			"minute,region,model,prompt_tokens\n0,eu,m,1\n2,us,m,2\n5,eu,m,3\n7,us,m,4\n",
			Options{Step: 10 * time.Minute},
			"eu m fast, prompt tokens by 10m from 1970-01-01T00:00: [4]\nus m fast, prompt tokens by 10m from 1970-01-01T00:00: [6]\n" +
				"note: rows are 5m apart: each counts for 5m (if each counts for 1 minute, add a row of 0 prompt tokens for the minute after each)\n",
		},
		"an idle balancer sends no rows": {
			`{"minute":0,"balancer":"a","model":"m","prompt_tokens":5}` + "\n" + `{"minute":2,"balancer":"a","model":"m","prompt_tokens":6}` + "\n",
			Options{},
			"m fast, prompt tokens by 1m from 1970-01-01T00:00: [5 NaN 6]\nnote: 1 gap (first: m fast at 1970-01-01T00:01:00Z): 1 minute in total are unknown\n",
		},
		"few minutes without a step": {
			"minute,model,prompt_tokens\n0,m,1\n3,m,2\n10,m,3\n",
			Options{},
			"m fast, prompt tokens by 1m from 1970-01-01T00:00: [1 NaN NaN 2 NaN NaN NaN NaN NaN NaN 3]\n" +
				"note: 2 gaps (first: m fast at 1970-01-01T00:01:00Z): 8 minutes in total are unknown\n",
		},
		"rows by the day": {
			"minute,model,prompt_tokens\n0,m,1\n1440,m,2\n2880,m,3\n",
			Options{},
			"reading history h: rows must be at most 1h apart, got 24h: write the load of every hour (if each row counts for 1 minute, add a row of 0 prompt tokens for the minute after each)",
		},
		"no requests": {"minute,model,prompt_tokens\n0,m,5\n", Options{Requests: true}, "reading history h: the source contains no request counts"},
		"azure 2023": {
			"t_s,input_tokens,output_tokens\n0,10,1\n59,20,1\n130,30,1\n200,40,1\n",
			Options{},
			"fast, prompt tokens by 1m from 1970-01-01T00:00: [30 0 30]\n" + partlyOne,
		},
		"azure 2024": {
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:30.5+00:00,1,3\n2024-05-12 00:01:00+00:00,18,0\n2024-05-12 02:02:10+02:00,2,0\n",
			Options{Requests: true},
			"fast, requests by 1m from 2024-05-12T00:01: [1]\n" + partlyTwo,
		},
		"mooncake": {
			`{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}` + "\n" + `{"timestamp": 61000, "input_length": 7, "output_length": 5, "hash_ids": [0]}` + "\n",
			Options{},
			"fast, prompt tokens by 1m from 1970-01-01T00:00: [6]\n" + partlyOne,
		},
		"bailian": {
			`{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 2, "type": "text", "turn": 1, "hash_ids": [1]}` + "\n" +
				`{"chat_id": 2, "parent_chat_id": -1, "timestamp": 60, "input_length": 16, "output_length": 1, "type": "text", "turn": 1, "hash_ids": [4]}` + "\n",
			Options{},
			"fast, prompt tokens by 1m from 1970-01-01T00:00: [40]\n" + partlyOne,
		},
		"burstgpt": {
			"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n0,ChatGPT,4,1,5,x\n45,GPT-4,5,1,6,x\n110,ChatGPT,6,1,7,x\n120,GPT-4,9,1,9,x\n",
			Options{},
			"ChatGPT fast, prompt tokens by 1m from 1970-01-01T00:00: [4 6]\nGPT-4 fast, prompt tokens by 1m from 1970-01-01T00:00: [5 0]\n" + partlyOne,
		},
		"sageserve": {
			"request_id,sla,regions,model_type,workload_type,arrival_timestamp,prompt_size,token_size\n0,10,eu,A,prod,0,100,20\n1,9999,us,A,dev,65,50,1\n2,10,eu,A,prod,130,7,1\n",
			Options{},
			"eu A fast, prompt tokens by 1m from 1970-01-01T00:00: [100 0]\nus A deferred, prompt tokens by 1m from 1970-01-01T00:00: [0 50]\n" + partlyOne,
		},
		"servegen, all clients": {
			"model,t_s,total_rps,active_clients\nm,0,2,1\nm,600,4,1\nn,0,5,1\nn,1200,5,1\n",
			Options{Requests: true},
			"m fast, requests/s by 10m from 1970-01-01T00:00: [2 4 NaN]\nn fast, requests/s by 10m from 1970-01-01T00:00: [5 NaN 5]\n" +
				"note: 1 gap (first: n fast at 1970-01-01T00:10:00Z): 10 minutes in total are unknown\n",
		},
		"servegen by client": {
			"model,client,t_s,rate_rps,cv,dist,p1,p2\nm,0,0,2,1,,,\nm,1,0,3,1,,,\nm,1,600,4,1,,,\nn,0,1200,1,1,,,\nn,0,1800,3,1,,,\n",
			Options{Step: 20 * time.Minute},
			"m fast, requests/s by 20m from 1970-01-01T00:00: [4.5 0]\nn fast, requests/s by 20m from 1970-01-01T00:00: [0 2]\n" +
				"note: the source contains only request rates: the series are requests per second, not prompt tokens\n",
		},
		"counters": {
			"at,model,prompt_tokens_total,instance\n2025-01-31T12:00:00Z,m,100,a\n2025-01-31T12:00:30Z,m,110,a\n2025-01-31T13:01:00+01:00,m,120,a\n" +
				"2025-01-31T12:02:00Z,m,7,a\n2025-01-31T12:00:00Z,m,5,b\n2025-01-31T12:01:00Z,m,6,b\n",
			Options{},
			"m fast, prompt tokens by 1m from 2025-01-31T12:00: [21 7]\n" +
				"note: 1 counter reset (first: m fast at 2025-01-31T12:02:00Z): counting continues from zero\n",
		},
		"counters without a time":  {"minute,model,prompt_tokens_total\n1,m,1\n", Options{}, `reading history h:1: header must contain the column "at", got "minute,model,prompt_tokens_total"`},
		"counters of two models":   {"at,model,prompt_tokens_total,model\n", Options{}, `reading history h:1: duplicate column "model": rename or remove one`},
		"a trace with two columns": {"t_s,input_tokens,output_tokens,t_s\n", Options{}, `reading history h:1: duplicate column "t_s": rename or remove one`},
		"a counter's bad time":     {"at,model,prompt_tokens_total\nnoon,m,1\n", Options{}, `reading history h:2: at must be a time with its offset`},
		"a counter that is none":   {"at,model,prompt_tokens_total\n2025-01-31T12:00:00Z,m,-1\n", Options{}, `reading history h:2: prompt_tokens_total must be a count of 0 to 1e18, got "-1"`},
		"a counter of no model":    {"at,model,prompt_tokens_total\n2025-01-31T12:00:00Z,,1\n", Options{}, `reading history h:2: model must not be empty, got ""`},
		"a counter's unknown tier": {"at,model,tier,prompt_tokens_total\n2025-01-31T12:00:00Z,m,gold,1\n", Options{}, `reading history h:2: tier must be fast (IW-F), normal (IW-N), deferred (NIW) or IW (fast and normal), got "gold"`},
		"a counter's short row":    {"at,model,prompt_tokens_total\n1\n", Options{}, "wrong number of fields"},
		"nothing whole":            {"t_s,input_tokens,output_tokens\n0,10,1\n5,10,1\n", Options{}, partlyTwo},
		"header only":              {"t_s,input_tokens,output_tokens\n", Options{}, ""},
		"empty":                    {"", Options{}, "reading history h: the file is empty"},
		"odd windows":              {"t_s,total_rps\n0,1\n90,1\n", Options{}, "reading history h: t_s must have steps of whole minutes, got 1m30s"},
		"bad row":                  {"t_s,input_tokens,output_tokens\n0,x,1\n", Options{}, `reading h:2: input_tokens: must be an integer from 0 to 4194304, got "x"`},
		"bad rate":                 {"t_s,total_rps\n0,x\n", Options{}, `reading h:2: total_rps: must be a number from 0 to 1e+06, got "x"`},
		"unknown header":           {"a,b\n1,2\n", Options{}, `reading history h:1: header must contain the column "minute" or "at", got "a,b"`},
		"naive time":               {"at,model,prompt_tokens\n2025-03-30 02:30:00,m,1\n", Options{}, `reading history h:2: at must be a time with its offset from UTC`},
		"before 1970":              {"t_s,input_tokens,output_tokens\n-120,1,1\n0,1,1\n", Options{}, "times must be after 1970"},
		"broken gzip":              {"\x1f\x8bnonsense", Options{}, "reading history h: unpacking gzip: gzip: invalid header"},
	} {
		t.Run(name, func(t *testing.T) {
			texts := []string{c.text}
			if c.text != "" && c.text[0] != 0x1f {
				texts = append(texts, gzipped(c.text))
			}
			for _, text := range texts {
				h, err := Read("h", strings.NewReader(text), c.o)
				if err != nil {
					if c.want == "" || !strings.Contains(err.Error(), c.want) {
						t.Fatalf("got the error %v\nwant %s", err, c.want)
					}
					continue
				}
				if got := describe(h); got != c.want {
					t.Errorf("got\n%s\nwant\n%s", got, c.want)
				}
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("t_s,input_tokens,output_tokens\n0,10,1\n59,20,1\n130,30,1\n")
	f.Add("model,client,t_s,rate_rps,cv,dist,p1,p2\nm,0,0,2,1,,,\nm,1,600,3,1,,,\n")
	f.Add("at,model,prompt_tokens_total\n2025-01-31T12:00:00Z,m,1\n2025-01-31T12:01:00Z,m,3\n")
	f.Add(`{"minute":100,"balancer":"a","model":"m","prompt_tokens":5}`)
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Read("f", strings.NewReader(text), Options{})
		if err != nil {
			return
		}
		for _, k := range h.Series {
			for _, v := range k.Values {
				if v < 0 || math.IsInf(v, 0) {
					t.Fatalf("%s has %g", k.SeriesKey, v)
				}
			}
		}
	})
}

func TestLoadFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "week.csv")
	if err := os.WriteFile(file, []byte("minute,model,prompt_tokens\n1,m,2\n2,m,3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := Load(t.Context(), file, Options{})
	if err != nil || len(h.Series) != 1 {
		t.Fatalf("%v, %v", h, err)
	}
	traffic, _, err := LoadTraffic(t.Context(), file, Options{})
	if err != nil || traffic.Minutes != 2 || traffic.Series[0].Values[1] != 3 {
		t.Fatalf("%+v, %v", traffic, err)
	}
	if err := os.WriteFile(file, []byte("minute,model,prompt_tokens,cached_tokens\n0,m,120,60\n60,m,0,0\n180,m,60,0\n240,m,60,0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if traffic, _, err = LoadTraffic(t.Context(), file, Options{}); err != nil || traffic.Minutes != 300 {
		t.Fatalf("rows by the hour: %+v, %v", traffic, err)
	}
	if s := traffic.Series[0]; s.Values[0] != 2 || s.Cached[59] != 1 || s.Values[60] != 0 || !math.IsNaN(s.Values[120]) || !math.IsNaN(s.Cached[179]) || s.Values[180] != 1 {
		t.Errorf("rows by the hour: %v, cached %v", s.Values, s.Cached)
	}
	if err := os.WriteFile(file, []byte("t_s,total_rps\n0,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err = LoadTraffic(t.Context(), file, Options{}); err == nil || !strings.Contains(err.Error(), "request rates, but no prompt tokens") {
		t.Errorf("traffic of rates: %v", err)
	}
	if _, err := Load(t.Context(), file+"x", Options{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestLoadURLs(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		if since := r.URL.Query().Get("since"); since != "0" && since != "5" {
			http.Error(w, "since "+since, http.StatusBadRequest)
			return
		}
		w.Write([]byte(`{"complete":false,"points":[{"minute":7,"balancer":"b","region":"us","model":"m","tier":"NIW","prompt_tokens":3}]}`))
	})
	mux.HandleFunc("GET /trace.csv", func(w http.ResponseWriter, r *http.Request) {
		if _, secret, _ := r.BasicAuth(); secret != "hush" || r.FormValue("sig") != "hush" {
			http.Error(w, "who?", http.StatusForbidden)
			return
		}
		w.Write([]byte("t_s,input_tokens,output_tokens\n0,10,1\n61,10,1\n"))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for source, want := range map[string]string{
		srv.URL: "us m deferred, prompt tokens by 1m from 1970-01-01T00:07: [3]\nnote: the balancer's store does not respond, or it has none ('skyserve lb' without --store): the history contains only the minutes that this balancer has in memory\n",
		strings.Replace(srv.URL, "//", "//me:hush@", 1) + "/trace.csv?sig=hush": "fast, prompt tokens by 1m from 1970-01-01T00:00: [10]\n" + partlyOne,
	} {
		h, err := Load(t.Context(), source, Options{})
		if err != nil || describe(h) != want {
			t.Errorf("%s: %v, %v\nwant %s", source, err, h, want)
		}
	}
	if _, err := Load(t.Context(), srv.URL, Options{Since: time.Unix(5*60, 0)}); err != nil {
		t.Error(err)
	}
	for source, want := range map[string]string{
		srv.URL + "/trace.csv?sig=secret":                  "fetching history " + srv.URL + "/trace.csv: the server returned 403: who?",
		srv.URL + "/nothing":                               "404",
		"ftp://me:secret@host/file?sig=secret":             `must be an http, https, prometheus+http or prometheus+https URL, got "ftp://host/file"`,
		"http://":                                          "must be an http",
		"http://me:sec ret@host:port/secret":               `got "http://..."`,
		"http://me:secret@127.0.0.1:1/x?token=secret":      "fetching history http://127.0.0.1:1/x: dial tcp",
		"prometheus+http://me:secret@127.0.0.1:1?q=secret": "querying Prometheus http://127.0.0.1:1: dial tcp",
	} {
		_, err := Load(t.Context(), source, Options{Now: time.Unix(1e9, 0)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want it to contain %q and no secret", source, err, want)
		}
	}
}
