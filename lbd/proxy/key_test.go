package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
)

// attachKeyed is attach for a replica with an API key.
func (b *balancer) attachKeyed(id, url string, key service.Secret) {
	b.t.Helper()
	if _, err := b.AddReplica(service.ReplicaConfig{ID: id, URL: url, Model: testModel, Key: key}); err != nil {
		b.t.Fatal(err)
	}
	b.report(id)
}

// The replica's key replaces the client's credentials, whether clients need keys of the service or not.
func TestReplicaKeyReplacesClientCredentials(t *testing.T) {
	for name, keys := range map[string][]service.APIKey{"without keys": nil, "with keys": apiKeys("sk-client")} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = keys
			b := start(t, o)
			var received atomic.Value
			b.attachKeyed("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				received.Store(strings.Join(req.Header["Authorization"], ", "))
				speak("fine")(w, req)
			}), "sk-engine")
			expect(t, b.post(chatPath, plainBody, "Authorization: Bearer sk-client"), http.StatusOK, "")
			if got := received.Load(); got != "Bearer sk-engine" {
				t.Errorf("the engine received %q", got)
			}
		})
	}
}

// A replica that rejects the balancer's key fails the attempt: another one serves the request, and
// otherwise the client receives 502, because its own key is not wrong. The replica is probed.
func TestRejectedReplicaKeyIsNoClientError(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		suspected := make(chan string, 8)
		o := roundRobin(t)
		o.Suspect = func(id string) { suspected <- id }
		b := start(t, o)
		b.attachKeyed("us-0", engine(t, refuse(status, `{"error":{"message":"sk-engine is invalid"}}`, nil)), "sk-engine")
		resp := b.post(chatPath, plainBody)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "us-0 rejects the API key that the balancer has for it") || strings.Contains(string(body), "sk-engine") {
			t.Errorf("%d: the client received %d %s", status, resp.StatusCode, body)
		}
		if id := <-suspected; id != "us-0" {
			t.Errorf("%d: %s is probed", status, id)
		}
		b.attach("us-1", engine(t, speak("fine")))
		for range 4 {
			expect(t, b.post(chatPath, plainBody), http.StatusOK, "")
		}
		lawful(t, b.settled())
	}
}
