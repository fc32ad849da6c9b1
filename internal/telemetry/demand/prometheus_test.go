package demand

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// now is the time of the tests, half a minute past a minute.
var now = time.Date(2025, 1, 31, 12, 0, 30, 0, time.UTC)

// fakeProm responds to range queries as Prometheus does.
type fakeProm struct {
	t       *testing.T
	queries []string
	ranges  [][2]int64
	auth    string
	dedup   string
	// response returns the status and the body for a query.
	response func(query string, start, end int64) (int, string)
}

func (p *fakeProm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, errStart := strconv.ParseInt(r.FormValue("start"), 10, 64)
	end, errEnd := strconv.ParseInt(r.FormValue("end"), 10, 64)
	if r.URL.Path != "/prom/api/v1/query_range" || errStart != nil || errEnd != nil || r.FormValue("step") != "60" {
		p.t.Errorf("requested %s", r.URL)
	}
	p.queries = append(p.queries, r.FormValue("query"))
	p.ranges = append(p.ranges, [2]int64{start, end})
	p.dedup = r.FormValue("dedup")
	p.auth = r.Header.Get("Authorization")
	status, body := p.response(r.FormValue("query"), start, end)
	w.WriteHeader(status)
	w.Write([]byte(body))
}

// matrix is a response with these series, each a JSON object.
func matrix(series ...string) string {
	return `{"status":"success","data":{"resultType":"matrix","result":[` + strings.Join(series, ",") + `]}}`
}

// values is a series of one value a minute from a time on.
func values(labels string, from int64, vs ...string) string {
	var pairs []string
	for i, v := range vs {
		if v != "" {
			pairs = append(pairs, fmt.Sprintf(`[%d,%q]`, from+int64(i)*60, v))
		}
	}
	return `{"metric":{` + labels + `},"values":[` + strings.Join(pairs, ",") + `]}`
}

func startProm(t *testing.T, response func(query string, start, end int64) (int, string)) (*fakeProm, string) {
	p := &fakeProm{t: t, response: response}
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	return p, "prometheus+" + srv.URL + "/prom"
}

func TestPrometheus(t *testing.T) {
	last := now.Unix() / 60 * 60
	for name, c := range map[string]struct {
		response []string
		params   string
		o        Options
		want     string
		query    string
	}{
		"rates by model, region and tier": {
			response: []string{matrix(values(`"model":"m","region":"us","tier":"NIW"`, last-180, "2", "", "NaN", "1.5"), values(`"model":"m","region":"eu","tier":"niw"`, last-180, "1", "1", "+Inf", "0"))},
			params:   "?query=my_rate%5B$window%5D",
			query:    "my_rate[2m]",
			want: "eu m deferred, prompt tokens by 1m from 2025-01-31T11:56: [60 60 NaN 0]\nus m deferred, prompt tokens by 1m from 2025-01-31T11:56: [120 NaN NaN 90]\n" +
				"note: 2 samples are not numbers (first: eu m deferred at 2025-01-31T11:58:00Z): treated as unknown\n" +
				"note: 2 gaps (first: us m deferred at 2025-01-31T11:57:00Z): 3 minutes in total are unknown\n",
		},
		"the balancers' own counters first": {
			response: []string{matrix(values(`"model":"m"`, last, "1"))},
			query:    "sum by (model, tier, region) (rate(skyserve_prompt_tokens_total[2m]))",
			want:     "m fast, prompt tokens by 1m from 2025-01-31T11:59: [60]\n",
		},
		"then engines'": {
			response: []string{matrix(), matrix(), matrix(values(`"model_name":"llama"`, last, "1"))},
			query:    "sum by (model_name, tier, region) (rate(sglang:prompt_tokens_total[2m]))",
			want:     "llama fast, prompt tokens by 1m from 2025-01-31T11:59: [60]\n",
		},
		"requests": {
			response: []string{matrix(values(`"model":"m"`, last, "0.5"))},
			o:        Options{Requests: true},
			query:    "sum by (model, tier, region) (rate(skyserve_requests_total[2m]))",
			want:     "m fast, requests by 1m from 2025-01-31T11:59: [30]\n",
		},
		"counters that begin again, of two instances": {
			response: []string{matrix(
				values(`"__name__":"vllm:prompt_tokens_total","model_name":"m","instance":"a"`, last-240, "100", "160", "30", "40", "45"),
				values(`"__name__":"vllm:prompt_tokens_total","model_name":"m","instance":"b"`, last-240, "7", "8", "9", "10", "11"))},
			o:     Options{PromQL: "vllm:prompt_tokens_total"},
			query: "vllm:prompt_tokens_total",
			want: "m fast, prompt tokens by 1m from 2025-01-31T11:56: [61 31 11 6]\n" +
				"note: 1 counter reset (first: m fast at 2025-01-31T11:58:00Z): counting continues from zero\n",
		},
		"warnings": {
			response: []string{strings.Replace(matrix(values("", last, "1")), `"data"`, `"warnings":["partial data"],"data"`, 1)},
			query:    "sum by (model, tier, region) (rate(skyserve_prompt_tokens_total[2m]))",
			want:     "fast, prompt tokens by 1m from 2025-01-31T11:59: [60]\nnote: Prometheus warning: partial data\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			queries := 0
			p, source := startProm(t, func(_ string, _, end int64) (int, string) {
				if end < last {
					return 200, matrix()
				}
				queries++
				return 200, c.response[queries-1]
			})
			c.o.Now = now
			h, err := Load(t.Context(), source+c.params, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(h); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if q := p.queries[len(p.queries)-1]; q != c.query {
				t.Errorf("queried %s, want %s", q, c.query)
			}
		})
	}
}

// A range is queried in parts of at most 11,000 points, and no point is queried twice.
func TestPrometheusRangesAreSplit(t *testing.T) {
	p, source := startProm(t, func(_ string, start, end int64) (int, string) {
		var vs []string
		for at := start; at <= end; at += 60 {
			vs = append(vs, "1")
		}
		return 200, matrix(values(`"model":"m"`, start, vs...))
	})
	h, err := Load(t.Context(), source, Options{Now: now, Since: now.Add(-30 * 24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(h.Series[0].Values); n != 30*1440 || len(h.Notes) != 0 {
		t.Errorf("%d minutes, %v", n, h.Notes)
	}
	for i, r := range p.ranges {
		if points := (r[1]-r[0])/60 + 1; points > 11000 || i > 0 && r[0] != p.ranges[i-1][1]+60 {
			t.Errorf("part %d: %d points, %v after %v", i, points, r, p.ranges)
		}
	}
	if len(p.ranges) != 4 {
		t.Errorf("%d parts", len(p.ranges))
	}
}

func TestPrometheusCredentials(t *testing.T) {
	p, source := startProm(t, func(_ string, start, _ int64) (int, string) { return 200, matrix(values("", start, "1")) })
	for _, c := range []struct{ user, given, want string }{
		{"", "", ""},
		{"me:pass@", "other", "Basic bWU6cGFzcw=="},
		{":tok@", "other", "Bearer tok"},
		{"x@", "", "Basic eDo="},
		{"", "tok", "Bearer tok"},
		{"", "me:pass", "Basic bWU6cGFzcw=="},
	} {
		o := Options{Now: now, PrometheusAuth: c.given}
		if _, err := Load(t.Context(), strings.Replace(source, "//", "//"+c.user, 1), o); err != nil || p.auth != c.want {
			t.Errorf("%q and %q: sent %q, %v; want %q", c.user, c.given, p.auth, err, c.want)
		}
	}
}

func TestPrometheusErrors(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"its own words":      {400, `{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": parse error"}`, `bad_data: invalid parameter "query": parse error`},
		"an error in a 200":  {200, `{"status":"error","errorType":"timeout","error":"query timed out"}`, "timeout: query timed out"},
		"no JSON":            {200, "<html>", "decoding the response: invalid character '<'"},
		"a proxy's response": {502, "bad gateway\nsorry", "the server returned 502: bad gateway"},
		"no words":           {401, "", "returned 401: Unauthorized"},
		"a vector":           {200, `{"status":"success","data":{"resultType":"vector","result":[]}}`, "the query must return a matrix of rates, got vector"},
		"nothing":            {200, matrix(), "no samples from 2025-01-17T12:01Z to 2025-01-31T12:00Z for sum by"},
		"histograms":         {200, matrix(`{"metric":{},"histograms":[[1,{}]]}`), "the query must return a matrix of rates, got histograms"},
		"a bad pair":         {200, matrix(`{"metric":{},"values":[[1,2]]}`), "a value must be a pair of a time and a number as text, got [1,2]"},
		"cut short":          {200, `{"status":"success","data":{"res`, "decoding the response: unexpected EOF"},
		"a negative rate":    {200, matrix(values(`"model":"m"`, now.Unix()/60*60, "-1")), "must be 0 to 1e+18, got -60"},
		"an unknown tier":    {200, matrix(values(`"tier":"gold"`, now.Unix()/60*60, "1")), `tier must be fast (IW-F), normal (IW-N), deferred (NIW) or IW (fast and normal), got "gold"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, source := startProm(t, func(string, int64, int64) (int, string) { return c.status, c.body })
			_, err := Load(t.Context(), source, Options{Now: now})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want it to contain %q", err, c.want)
			}
		})
	}
	_, source := startProm(t, func(string, int64, int64) (int, string) { return 200, matrix() })
	if _, err := Load(t.Context(), source, Options{Now: now, Since: now}); err == nil || !strings.Contains(err.Error(), "contains no complete minute") {
		t.Errorf("no time at all: %v", err)
	}
}

// An http URL is Prometheus' when a query is given; its other parameters are
// forwarded, because some stores with the same API require them.
func TestPrometheusForwardsParameters(t *testing.T) {
	p, source := startProm(t, func(_ string, start, _ int64) (int, string) { return 200, matrix(values("", start, "1")) })
	traffic, _, err := LoadTraffic(t.Context(), strings.TrimPrefix(source, "prometheus+")+"?dedup=true", Options{Now: now, PromQL: "q"})
	if err != nil || p.dedup != "true" || p.queries[0] != "q" || traffic.Series[0].Values[0] != 60 {
		t.Errorf("queried %q with %q, got %+v, %v", p.queries, p.dedup, traffic, err)
	}
}

// The history of a plan does not take a minute as idle that Prometheus does not know: the plan would be too small.
func TestTrafficOfUnknownMinutesIsUnknown(t *testing.T) {
	from := now.Unix()/60*60 - 180
	_, source := startProm(t, func(string, int64, int64) (int, string) {
		return 200, matrix(values(`"region":"us","model":"m"`, from, "1", "2", "3", "4"), values(`"region":"us","model":"n"`, from, "5", "", "NaN", "8"))
	})
	traffic, notes, err := LoadTraffic(t.Context(), source, Options{Now: now, Since: now.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, s := range traffic.Series {
		got += fmt.Sprintln(s.SeriesKey, s.Values, s.Cached)
	}
	if want := "us m fast [60 120 180 240] [0 0 0 0]\nus n fast [300 NaN NaN 480] [0 NaN NaN 0]\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := strings.Join(notes, "\n"); got != "1 sample is not a number (first: us n fast at 2025-01-31T11:58:00Z): treated as unknown\n1 gap (first: us n fast at 2025-01-31T11:57:00Z): 2 minutes in total are unknown" {
		t.Errorf("notes\n%s", got)
	}
}

func FuzzPrometheusAnswer(f *testing.F) {
	f.Add(matrix(values(`"model":"m"`, 60, "1", "NaN")))
	f.Add(`{"status":"error"}`)
	f.Fuzz(func(t *testing.T, body string) {
		var doc promResponse
		a := &queryResult{byLabels: map[string]*promSeries{}}
		if json.Unmarshal([]byte(body), &doc) != nil || a.add(doc) != nil {
			return
		}
		if found, err := (&prometheus{}).found(a); err == nil {
			_, _ = found.history("f", Options{}) // an error is fine, a panic is not
		}
	})
}
