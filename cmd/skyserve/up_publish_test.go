package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// failingZone is a hosted zone whose first changes fail.
type failingZone struct {
	provision.DNSZone
	mu       sync.Mutex
	failures int
	set      provision.PublicName
}

func (z *failingZone) Set(_ context.Context, n provision.PublicName) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.failures--; z.failures >= 0 {
		return errors.New("throttled")
	}
	z.set = n
	return nil
}

// published returns the number of published records.
func (z *failingZone) published() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return len(z.set.Records)
}

// A name whose publication failed is published later, although no other balancer becomes ready; at the latest when the wait
// for machines ends.
func TestFailedPublicationIsRetried(t *testing.T) {
	spec, err := service.Parse("service.yaml", []byte(cloudService))
	if err != nil {
		t.Fatal(err)
	}
	svc := storedService(t, "")
	for name, tt := range map[string]struct {
		failures int
		waits    time.Duration
	}{"while machines start": {2, time.Minute}, "at the end": {1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			zone := &failingZone{failures: tt.failures}
			var out bytes.Buffer
			u := &upRun{up: &up{errOut: &out}, spec: spec, svc: svc, zone: zone}
			p := &publisher{
				up: u, have: []provision.Object{{ID: "lb-us-east-1-0", Kind: provision.KindBalancer, Region: "aws/us-east-1"}},
				ready: make(chan struct{}, 1), pending: map[string]bool{"lb-us-east-1-0": true},
			}
			ended := make(chan struct{})
			go func() {
				p.publishChanges(t.Context())
				close(ended)
			}()
			p.markReady("lb-us-east-1-0")
			synctest.Wait()
			if n := zone.published(); n > 0 {
				t.Errorf("%s: %d records", name, n)
			}
			time.Sleep(tt.waits)
			if n := zone.published(); (n == 1) != (tt.waits > 0) {
				t.Errorf("%s: after %s: %d records", name, tt.waits, n)
			}
			close(p.ready)
			<-ended
			if zone.published() != 1 || strings.Count(out.String(), "failed, will retry: throttled") != tt.failures || !strings.Contains(out.String(), "  published chat.example.com\n") {
				t.Errorf("%s: %+v\n%s", name, zone.set, &out)
			}
		})
	}
}
