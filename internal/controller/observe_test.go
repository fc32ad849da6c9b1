package controller

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand/demandtest"
	"skyserve/plan"
)

// fakeAdmin is a balancer's admin API with fixed responses.
func fakeAdmin(t *testing.T, yaml, snapshot, history string) string {
	t.Helper()
	mux := http.NewServeMux()
	for path, body := range map[string]string{"/v1/service": yaml, "/v1/snapshot": snapshot, "/v1/history": history} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if body == "" {
				http.Error(w, `{"error":{"message":"not here"}}`, http.StatusNotFound)
				return
			}
			w.Write([]byte(body))
		})
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

const (
	oneReady = `{"regions":[{"name":"local/us","replicas":[{"id":"us-0","model":"chat-small","gpu":"L4","state":"READY"}]}]}`
	deadEU   = `{"regions":[{"name":"local/eu","balancers":[{"id":"lb-eu-0","state":"UNREACHABLE"}]},{"name":"local/us","replicas":[{"id":"us-0","model":"chat-small","gpu":"L4","state":"READY"}]}]}`
	ofUS     = `{"minute":7,"balancer":"lb-us","region":"local/us","model":"chat-small","tier":"IW-F","prompt_tokens":3}`
	ofEU     = `{"minute":7,"balancer":"lb-eu","region":"local/eu","model":"chat-small","tier":"IW-F","prompt_tokens":4}`
)

func answerOf(complete, points string) string {
	return `{"complete":` + complete + `,"points":[` + points + `]}`
}

// clients returns the clients of admin APIs.
func clients(admins ...string) (all []*telemetry.Client) {
	for _, a := range admins {
		all = append(all, telemetry.NewClient(a, nil))
	}
	return all
}

func TestObserve(t *testing.T) {
	us := fakeAdmin(t, demandtest.Service, oneReady, answerOf("false", ofUS))
	eu := fakeAdmin(t, demandtest.Service, oneReady, answerOf("false", ofEU))
	whole := fakeAdmin(t, demandtest.Service, oneReady, answerOf("true", ofUS+","+ofEU))
	withoutHistory := fakeAdmin(t, demandtest.Service, oneReady, "")
	unlisted := fakeAdmin(t, demandtest.Service, deadEU, answerOf("true", ofUS+","+ofEU))
	for name, c := range map[string]struct {
		admins []string
		points int
		notes  string
	}{
		"complete":             {[]string{whole, us}, 2, ""},
		"from memory":          {[]string{us, eu}, 2, "the store does not respond: the history contains only the minutes that balancers have in memory"},
		"no history from one":  {[]string{us, withoutHistory}, 1, "the store does not respond: the history contains only the minutes that balancers have in memory; 1 of 2 balancers did not return their history"},
		"second has the store": {[]string{us, whole}, 2, ""},
		"one has ended":        {[]string{unlisted}, 2, "no response from lb-eu-0: replicas that no other balancer has do not count as running, and the latest load there is unknown; 'skyserve status' shows the state"},
		"one is dead":          {[]string{"http://127.0.0.1:1", whole}, 2, "1 of 2 balancers do not respond, or return errors: their replicas are counted from the last reports that other balancers have"},
	} {
		o, err := Observe(t.Context(), clients(c.admins...), 0, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if o.Spec.Name != "chat" || len(o.Counts) != 1 || o.Counts[0].Replicas != 1 || len(o.Points) != c.points || strings.Join(o.Notes, "; ") != c.notes {
			t.Errorf("%s: %d points, %v, notes %v", name, len(o.Points), o.Counts, o.Notes)
		}
	}
	if o, err := Observe(t.Context(), clients(whole), 0, false); err != nil || o.Points != nil {
		t.Errorf("history was not requested: %v, %v", o.Points, err)
	}
}

func TestObserveFails(t *testing.T) {
	none := fakeAdmin(t, "", "", "")
	invalid := fakeAdmin(t, "name: [", oneReady, "")
	for name, c := range map[string]struct {
		admins []string
		want   string
	}{
		"no balancers": {nil, "it has no balancers"},
		"no service":   {[]string{none}, "/v1/service returned 404: not here"},
		"invalid":      {[]string{invalid}, "service.yaml of http://"},
		"both errors":  {[]string{none, "http://127.0.0.1:1"}, "connection refused"},
	} {
		if _, err := Observe(t.Context(), clients(c.admins...), 0, true); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want it to contain %q", name, err, c.want)
		}
	}
}

// An unreachable service is distinguished from one whose balancers return invalid responses.
func TestObserveDistinguishesUnreachable(t *testing.T) {
	none := fakeAdmin(t, "", "", "")
	const closed = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		admins      []string
		unreachable bool
	}{
		"none listens":    {[]string{closed, closed}, true},
		"one returns 404": {[]string{none, closed}, false},
	} {
		if _, err := Observe(t.Context(), clients(c.admins...), 0, true); errors.Is(err, ErrNoBalancerResponds) != c.unreachable {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Each balancer has the newest reports of its own region: its report of its replicas takes precedence over those
// of other balancers.
func TestObserveUsesOwnRegionsReports(t *testing.T) {
	replica := func(id, state, age string) string {
		return `{"id":"` + id + `","model":"chat-small","gpu":"L4","state":"` + state + `","age_ms":` + age + `}`
	}
	region := func(name, replicas string) string { return `{"name":"` + name + `","replicas":[` + replicas + `]}` }
	us := fakeAdmin(t, demandtest.Service, `{"regions":[`+region("local/us", replica("us-0", "READY", "5"))+","+region("local/eu", replica("eu-0", "READY", "900"))+`]}`, "")
	eu := fakeAdmin(t, demandtest.Service, `{"regions":[`+region("local/us", replica("us-0", "FAILED", "null"))+","+
		region("local/eu", replica("eu-0", "FAILED", "7")+","+replica("eu-1", "READY", "7"))+`]}`, "")
	o, err := Observe(t.Context(), clients(us, eu), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []plan.ReplicaCount{{Model: "chat-small", Region: "local/eu", GPU: "L4", Replicas: 1}, {Model: "chat-small", Region: "local/us", GPU: "L4", Replicas: 1}}
	if !slices.Equal(o.Counts, want) {
		t.Fatalf("%v, want %v", o.Counts, want)
	}
}

// The per-model counts of a region come from the newest reports of its balancers; unreachable
// balancers do not count, and missing figures stay unknown.
func TestObserveUsesNewestModelCounts(t *testing.T) {
	region := func(name, balancers, models string) string {
		return `{"name":"` + name + `","balancers":[` + balancers + `],"models":` + models + `,"replicas":[]}`
	}
	reported := func(age, state string) string { return `{"id":"lb","age_ms":` + age + `,"state":"` + state + `"}` }
	held := func(n string) string { return `[{"model":"chat-small","queued":` + n + `,"deferred":4}]` }
	us := fakeAdmin(t, demandtest.Service, `{"regions":[`+region("local/asia", reported("900", "READY"), held("3"))+","+region("local/eu", reported("800", "READY"), held("7"))+","+
		region("local/us", reported("0", "READY")+","+reported("90000", "UNREACHABLE"), held("1"))+`]}`, "")
	eu := fakeAdmin(t, demandtest.Service, `{"regions":[`+region("local/eu", reported("0", "READY"), "null")+","+region("local/sa", reported("0", "UNREACHABLE"), "null")+","+
		region("local/us", reported("400", "READY"), held("9"))+`]}`, "")
	o, err := Observe(t.Context(), clients(us, eu), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, r := range o.Snapshot.Regions {
		got[string(r.Name)] = fmt.Sprint(r.Models, balancerReportAge(o.Snapshot.Regions[i]) < maxReportAge)
	}
	want := map[string]string{"local/asia": "[{chat-small 3 4 0 0 <nil> <nil> false}] true", "local/eu": "[] true", "local/sa": "[] false", "local/us": "[{chat-small 1 4 0 0 <nil> <nil> false}] true"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The batches of all balancers are one backlog; each batch counts once.
func TestObserveReadsBacklog(t *testing.T) {
	const batch = `{"id":"batch_a","deadline":"2026-03-02T10:00:00Z","backlog":[{"model":"chat-small","input_tokens":500},{"model":"other","input_tokens":7}]}`
	a := fakeAdmin(t, demandtest.Service, strings.Replace(oneReady, `{`, `{"batches":[`+batch+`],`, 1), "")
	b := fakeAdmin(t, demandtest.Service, strings.Replace(oneReady, `{`, `{"batches":[`+batch+`],`, 1), "")
	o, err := Observe(t.Context(), clients(fakeAdmin(t, demandtest.Service, oneReady, ""), a, b), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	due := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	want := []plan.Backlog{{Batch: "batch_a", Model: "chat-small", Tokens: 500, Deadline: due}, {Batch: "batch_a", Model: "other", Tokens: 7, Deadline: due}}
	if !slices.Equal(o.Backlog, want) {
		t.Errorf("%+v, want %+v", o.Backlog, want)
	}
}

// Each balancer is asked for its own replicas. While one does not respond, the others are asked for what they know of its
// replicas: none is missing from the observation.
func TestObserveRequestsOwnReplicas(t *testing.T) {
	var full atomic.Int64
	balancer := func(own, other string) string {
		mux := http.NewServeMux()
		replica := func(id string) string {
			return fmt.Sprintf(`{"id":%q,"model":"chat-small","gpu":"L4","state":"READY"}`, id)
		}
		mux.HandleFunc("GET /v1/service", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(demandtest.Service)) })
		mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, r *http.Request) {
			list := replica(own)
			if r.URL.Query().Get("replicas") != "own" {
				full.Add(1)
				list += "," + replica(other)
			}
			fmt.Fprintf(w, `{"regions":[{"name":"local/us","replicas":[%s]}]}`, list)
		})
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		return srv.URL
	}
	first, second := balancer("us-0", "us-1"), balancer("us-1", "us-0")
	for _, c := range []struct {
		admins []string
		full   int64
	}{{[]string{first, second}, 0}, {[]string{first, "http://127.0.0.1:1"}, 1}} {
		full.Store(0)
		o, err := Observe(t.Context(), clients(c.admins...), 0, false)
		if err != nil || len(o.Counts) != 1 || o.Counts[0].Replicas != 2 || full.Load() != c.full {
			t.Errorf("%d whole snapshots, want %d; counts %v, %v", full.Load(), c.full, o.Counts, err)
		}
	}
}

// hungTransport is the connection to a balancer that accepts requests and never responds.
type hungTransport struct{}

func (hungTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// handlerTransport is the connection to a balancer that responds at once.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// The timeout of a balancer that hangs leaves time to query the others again.
func TestObserveWithHungBalancer(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/service", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(demandtest.Service)) })
	mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(oneReady)) })
	synctest.Test(t, func(t *testing.T) {
		hung := telemetry.NewClient("lb-us", &http.Client{Transport: hungTransport{}})
		live := telemetry.NewClient("lb-eu", &http.Client{Transport: handlerTransport{mux}})
		o, err := Observe(t.Context(), []*telemetry.Client{hung, live}, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		if o.Failed != 1 || len(o.Counts) != 1 || o.Counts[0].Replicas != 1 {
			t.Errorf("%d balancers failed, counts %v", o.Failed, o.Counts)
		}
	})
}

// One balancer reads the store, into which the others have not put their last seconds: they are asked for these.
func TestHistoryHasUnstoredPoints(t *testing.T) {
	admin := func(stored, unstored string) string {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/service", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(demandtest.Service)) })
		mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(oneReady)) })
		mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
			switch own := r.FormValue("points") == telemetry.PointsUnstored; {
			case own && unstored == "":
				http.Error(w, `{"error":{"message":"busy"}}`, http.StatusServiceUnavailable)
			case own:
				_, _ = w.Write([]byte(answerOf("false", unstored)))
			default:
				_, _ = w.Write([]byte(answerOf("true", stored)))
			}
		})
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		return srv.URL
	}
	of := func(place string, minute, tokens int) string {
		return fmt.Sprintf(`{"minute":%d,"balancer":"lb-%s","region":"local/%s","model":"chat-small","tier":"IW-F","prompt_tokens":%d}`, minute, place, place, tokens)
	}
	us := admin(of("us", 7, 3)+","+of("us", 8, 6)+","+of("eu", 7, 4), of("us", 8, 6))
	for _, c := range []struct {
		name, unstored string
		want           map[service.Region][]float64
		notes          string
	}{
		{"both respond", of("eu", 7, 400) + "," + of("eu", 8, 5), map[service.Region][]float64{"local/eu": {400, 5}, "local/us": {3, 6}}, ""},
		{"one does not", "", map[service.Region][]float64{"local/eu": {4}, "local/us": {3}}, "1 of 2 balancers did not return their latest load: what they have not stored yet is missing"},
	} {
		o, err := Observe(t.Context(), clients(us, admin("", c.unstored)), 0, true)
		if err != nil {
			t.Fatal(err)
		}
		h, err := o.History(time.Unix(9*60+5, 0))
		if err != nil {
			t.Fatal(err)
		}
		got := map[service.Region][]float64{}
		for _, s := range h.Series {
			got[s.Region] = s.Values
		}
		if notes := strings.Join(o.Notes, "; "); !maps.EqualFunc(got, c.want, slices.Equal[[]float64]) || notes != c.notes {
			t.Errorf("%s: loads by minute %v, want %v; notes %q, want %q", c.name, got, c.want, notes, c.notes)
		}
	}
}

// The store lacks, in the first seconds of a minute, what balancers that do not respond have not stored of the minute
// before.
func TestTrafficOmitsMinuteBeingStored(t *testing.T) {
	point := func(balancer string, minute, tokens int64) telemetry.Point {
		return telemetry.Point{Minute: minute, Balancer: balancer, Region: "local/us", Model: "m", Tier: service.TierFast, Requests: 1, PromptTokens: tokens}
	}
	one := []telemetry.Point{point("a", 100, 600), point("a", 101, 600), point("a", 102, 50)}
	two := append(slices.Clone(one), point("b", 100, 600), point("b", 101, 500))
	for _, c := range []struct {
		name   string
		points []telemetry.Point
		second int
		want   []float64
	}{
		{"two balancers, not stored yet", two, 9, []float64{1200}},
		{"two balancers, stored", two, 15, []float64{1200, 1100, 50}},
		{"two balancers, only the last minute", []telemetry.Point{point("a", 101, 600), point("b", 101, 500)}, 9, []float64{1100}},
		{"one balancer", one, 9, []float64{600, 600, 50}},
		{"none", nil, 9, nil},
	} {
		h, err := (&Observed{Points: c.points, lacksUnstored: true}).History(time.Unix(102*60+int64(c.second), 0))
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for _, s := range h.Series {
			got = append(got, s.Values...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: loads by minute %v, want %v", c.name, got, c.want)
		}
	}
}
