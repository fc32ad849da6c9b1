package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

// gathered returns the metrics of a scrape by name and labels; for a histogram, the number of
// observations.
func (b *balancer) gathered() map[string]float64 {
	b.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	b.RegisterMetrics(reg)
	families, err := reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, speak("a", " b")))
	read(t, b.post(chatPath, streamBody))
	read(t, b.post(chatPath, `{"model":"nothing"}`))
	b.settled()
	got := b.gathered()
	for key, want := range map[string]float64{
		"skyserve_requests_total{model=" + testModel + ",outcome=finished,status=200,tier=IW-F}": 1,
		"skyserve_requests_total{model=,outcome=refused,status=404,tier=IW-F}":                   1,
		"skyserve_ttft_seconds{model=" + testModel + ",tier=IW-F}":                               1,
		"skyserve_e2e_seconds{model=" + testModel + ",tier=IW-F}":                                1,
		"skyserve_queue_seconds{model=" + testModel + ",tier=IW-F}":                              1,
		"skyserve_decisions_total{kind=dispatch,policy=skylb,reason=prefix_miss}":                1,

		"skyserve_queue_depth{}":                              0,
		"skyserve_replica_outstanding{replica=us-0}":          0,
		"skyserve_ended_total{how=finished,outcome=finished}": 1,
		"skyserve_retries_total{}":                            0,

		"skyserve_output_tokens_total{model=" + testModel + ",tier=IW-F}": 2,
		"skyserve_prompt_tokens_total{model=" + testModel + ",tier=IW-F}": 100,
		"skyserve_cached_tokens_total{model=" + testModel + ",tier=IW-F}": 64,

		"skyserve_in_flight{}":                                             0,
		"skyserve_draining{}":                                              0,
		"skyserve_retries_refused_total{}":                                 0,
		"skyserve_ejections_total{}":                                       0,
		"skyserve_requests_stopped_total{}":                                0,
		"skyserve_model_replicas{model=" + testModel + "}":                 1,
		"skyserve_model_queued{model=" + testModel + "}":                   0,
		"skyserve_replica_sent_total{replica=us-0}":                        1,
		"skyserve_replica_failures_total{cause=disconnected,replica=us-0}": 0,
		"skyserve_replica_prompt_tokens_total{replica=us-0}":               100,
		"skyserve_replica_cached_tokens_total{replica=us-0}":               64,
		"skyserve_replica_pending{replica=us-0}":                           0,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s is %v (there: %v), want %v", key, v, ok, want)
		}
	}
}

func TestFailuresByCause(t *testing.T) {
	for cause, h := range map[string]http.HandlerFunc{
		"status":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"disconnected": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"unreachable":  nil,
		"error_response": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte(chunk("a") + `data: {"error":{"message":"died","code":500}}` + "\n\n"))
		},
	} {
		o := testOptions(t)
		o.Core.MaxAttempts, o.NoContinue = 1, true
		b := start(t, o)
		url := "http://" + testkit.FreeAddr()
		if h != nil {
			url = engine(t, h)
		}
		b.attach("us-0", url)
		read(t, b.post(chatPath, streamBody))
		b.settled()
		got := b.gathered()
		for w := range failureBounced {
			want := 0.0
			if w.String() == cause {
				want = 1
			}
			if n := got["skyserve_replica_failures_total{cause="+w.String()+",replica=us-0}"]; n != want {
				t.Errorf("a target that fails (%s): %v failures by %s, want %v", cause, n, w, want)
			}
		}
		if n := got["skyserve_replica_sent_total{replica=us-0}"]; n != 1 {
			t.Errorf("%s: %v attempts were sent, want 1", cause, n)
		}
	}
}

// Counts of a target exist until it is removed, and are kept across its updates.
func TestMetricsOfRemovedTargets(t *testing.T) {
	b := start(t, testOptions(t))
	url := engine(t, speak("a"))
	b.attach("us-0", url)
	b.AddPeer(service.PeerConfig{ID: "lb-eu", Region: "local/eu", URL: "http://127.0.0.1:1"}, nil)
	read(t, b.post(chatPath, streamBody))
	b.settled()
	b.attach("us-0", url)
	const sent, peerSent = "skyserve_replica_sent_total{replica=us-0}", "skyserve_peer_sent_total{peer=lb-eu}"
	got := b.gathered()
	if n := got[sent]; n != 1 {
		t.Errorf("%v attempts after an update, want 1", n)
	}
	if _, there := got[peerSent]; !there {
		t.Error("the peer has no metrics")
	}
	if _, there := got["skyserve_peer_rtt_seconds{peer=lb-eu}"]; there {
		t.Error("a peer without a report has a round trip")
	}
	if _, err := b.RemoveReplica("us-0", 0); err != nil {
		t.Fatal(err)
	}
	b.RemovePeer("lb-eu")
	for key := range b.gathered() {
		if strings.Contains(key, "replica=") || strings.Contains(key, "peer=") {
			t.Errorf("%s is exported for a removed target", key)
		}
	}
}

// A figure that an engine does not report is missing, not zero.
func TestUnknownFiguresAreNotExported(t *testing.T) {
	b := start(t, testOptions(t))
	if _, err := b.AddReplica(service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:1", Model: testModel}); err != nil {
		t.Fatal(err)
	}
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-0", Report: &core.ProbeReport{Ready: true}})
	got := b.gathered()
	for _, name := range []string{"pending", "running", "kv_usage_ratio"} {
		if v, there := got["skyserve_replica_"+name+"{replica=us-0}"]; there {
			t.Errorf("%s is %v, though the engine reported nothing", name, v)
		}
	}
	if v := got["skyserve_replica_ready{replica=us-0}"]; v != 1 {
		t.Errorf("ready is %v", v)
	}
}

// Token metrics exclude tokens that no engine computed. The history includes them, because it
// records the tokens of clients' requests.
func TestTokensOfUnservedRequest(t *testing.T) {
	t.Parallel()
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	if resp := b.post(chatPath, plainBody); resp.StatusCode < 500 {
		t.Errorf("status %d", resp.StatusCode)
	}
	b.settled()
	for key, n := range b.gathered() {
		if strings.Contains(key, "tokens_total") && n != 0 {
			t.Errorf("%s is %v", key, n)
		}
	}
	if p := b.tallied(); p.Requests != 1 || p.PromptTokens == 0 {
		t.Errorf("points %+v, want the request and its requested tokens", p)
	}
}
