package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// Hop-by-hop headers, headers that the client lists in Connection, and headers reserved for balancers
// are not forwarded, in both directions.
func TestHeadersNotForwarded(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		mu.Lock()
		got = req.Header.Clone()
		mu.Unlock()
		for name, value := range map[string]string{
			"Connection": "x-baz, X-Qux", "X-Baz": "1", "X-Qux": "1", "Keep-Alive": "timeout=5", "Proxy-Authenticate": "Basic",
			"X-Skyserve-Replica": "spoofed", "X-Skyserve-Bounce": "1", "x-skyserve-secret": "1", "X-Kept": "kept", "Content-Type": "application/json",
		} {
			w.Header().Set(name, value)
		}
		_, _ = io.WriteString(w, plainReply)
	}))
	resp := b.post(chatPath, plainBody,
		"Connection: x-foo, X-Bar", "X-Foo: 1", "X-Bar: 1", "Keep-Alive: 5", "Te: trailers", "Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive",
		"X-Skyserve-Hop: both", "X-Skyserve-From: lb-eu-0", "X-Skyserve-Tenant: somebody", "X-Skyserve-Peer-Token: guess", "x-skyserve-session-age-ms: 5",
		"X-Skyserve-Continued: 1", "X-Skyserve-Anything: 1", "X-Kept: kept", "Accept-Encoding: gzip",
	)
	expect(t, resp, http.StatusOK, "")
	mu.Lock()
	defer mu.Unlock()
	for name := range got {
		if strings.HasPrefix(name, ownPrefix) || slices.Contains([]string{"X-Foo", "X-Bar", "Connection", "Keep-Alive", "Te", "Proxy-Authorization", "Proxy-Connection"}, name) ||
			(name == "Accept-Encoding" && got.Get(name) == "gzip") {
			t.Errorf("the engine got %s: %s", name, got.Get(name))
		}
	}
	if got.Get("X-Kept") != "kept" || resp.Header.Get("X-Kept") != "kept" {
		t.Error("a header of the client's or the engine's own got lost")
	}
	for _, name := range []string{"X-Baz", "X-Qux", "Keep-Alive", "Proxy-Authenticate", headerBounce, "X-Skyserve-Secret"} {
		if v, there := resp.Header[name]; there {
			t.Errorf("the client got %s: %s", name, v)
		}
	}
	if resp.Header.Get(headerReplica) != "us-0" {
		t.Errorf("the engine can set the replica to %q", resp.Header.Get(headerReplica))
	}
	if c := b.settled(); c.ForwardedIn != 0 || c.Finished != 1 {
		t.Errorf("counts %+v: a client was treated as a peer", c)
	}
}

// Each of three regions has reports that the others have capacity. A request is forwarded at most once
// and may return, for all connections between them.
func TestNoForwardingLoops(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]policy.Maybe[int]{"replicas that are full": policy.Known(9), "no replica that answers": {}} {
		t.Run(name, func(t *testing.T) {
			regions := []string{"us", "eu", "asia"}
			var all []*balancer
			for _, region := range regions {
				o := roundRobin(t)
				o.Self.ID, o.Self.Region, o.Self.PeerToken = "lb-"+region, service.Region("local/"+region), "secret"
				o.Core.MaxWait = 300 * time.Millisecond
				all = append(all, start(t, o))
			}
			for i, b := range all {
				if _, err := b.AddReplica(replicaAt(regions[i]+"-0", "http://127.0.0.1:1")); err != nil {
					t.Fatal(err)
				}
				if pending.Known {
					b.Step(core.Event{Kind: core.EventReplicaReport, Target: regions[i] + "-0", Report: &core.ProbeReport{Ready: true, Pending: pending, KV: policy.Known(1.0)}})
				}
				for j, other := range all {
					if i != j {
						b.AddPeer(service.PeerConfig{ID: "lb-" + regions[j], Region: service.Region("local/" + regions[j]), URL: other.url}, nil)
						b.receiveReport("lb-" + regions[j])
					}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, all[0].url+chatPath, strings.NewReader(plainBody))
			resp := all[0].do(req)
			if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusBadGateway {
				t.Errorf("status %d: %s", resp.StatusCode, read(t, resp))
			}
			for i, b := range all {
				c := b.settled()
				lawful(t, c)
				if i > 0 && c.ForwardedOut > 0 {
					t.Errorf("%s forwarded what was forwarded to it: %+v", regions[i], c)
				}
				if c.ForwardedOut > int64(b.coreCfg.MaxAttempts)+2 {
					t.Errorf("%s forwarded one request %d times", regions[i], c.ForwardedOut)
				}
			}
		})
	}
}
