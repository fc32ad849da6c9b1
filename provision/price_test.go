package provision_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Published prices replace built-in list prices, type by type. Reserved capacity costs the on-demand price
// unless the user sets one.
func TestWithPricesPrefersPublishedPrices(t *testing.T) {
	listed := provision.Offerings{
		{Type: "a", Capacity: onDemand, PricePerHour: 1, PriceSource: "list"},
		{Type: "a", Capacity: spot, PricePerHour: 0.5, PriceSource: "zone"},
		{Type: "a", Capacity: service.CapacityReserved, PricePerHour: 1, PriceSource: "list"},
		{Type: "b", Capacity: onDemand, PricePerHour: 2, PriceSource: "list"},
		{Type: "b", Capacity: spot},
	}
	before := slices.Clone(listed)
	got := listed.WithPrices([]provision.Price{{Type: "a", Capacity: onDemand, PerHour: 1.5, Source: "cloud"}, {Type: "b", Capacity: spot, PerHour: 0.7, Source: "cloud"}, {Type: "c", Capacity: spot, PerHour: 9}})
	want := slices.Clone(listed)
	want[0].PricePerHour, want[0].PriceSource = 1.5, "cloud"
	want[2].PricePerHour, want[2].PriceSource = 1.5, "cloud"
	want[4].PricePerHour, want[4].PriceSource = 0.7, "cloud"
	if !slices.Equal(got, want) || !slices.Equal(listed, before) {
		t.Errorf("got %+v of %+v, want %+v", got, listed, want)
	}
	if got := listed.WithPrices(nil); !slices.Equal(got, listed) {
		t.Errorf("without prices: %+v", got)
	}
}

// Results are cached for hours, errors for minutes, and errors of cancelled contexts not at all.
func TestCloudCacheCachesResultsAndErrors(t *testing.T) {
	var h provision.CloudCache[int]
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	refused := errors.New("refused")
	asked := 0
	fetch := func(err error) func(context.Context) (int, error) {
		return func(context.Context) (int, error) {
			asked++
			return asked, err
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		key   string
		after time.Duration
		err   error // of the request
		want  int
		fails error
	}{
		{"refused", t.Context(), "a", 0, refused, 1, refused},
		{"denied a moment ago", t.Context(), "a", 9 * time.Minute, nil, 1, refused},
		{"of another", t.Context(), "b", 9 * time.Minute, nil, 2, nil},
		{"denied a while ago", t.Context(), "a", 11 * time.Minute, nil, 3, nil},
		{"cached for an hour", t.Context(), "a", time.Hour, refused, 3, nil},
		{"cached for a day, caller cancelled", gone, "a", 24 * time.Hour, refused, 0, context.Canceled},
		{"cached for a day", t.Context(), "a", 24 * time.Hour, nil, 4, nil},
	} {
		got, err := h.Get(tt.ctx, tt.key, noon.Add(tt.after), fetch(tt.err))
		if tt.ctx == gone { // whether it sends the request before it ends is random
			if err == nil {
				t.Errorf("%s: no error", tt.name)
			}
			asked = 3
			continue
		}
		if got != tt.want || !errors.Is(err, tt.fails) {
			t.Errorf("%s: got %d, %v, want %d, %v", tt.name, got, err, tt.want, tt.fails)
		}
	}
}

// Concurrent callers share one request.
func TestCloudCacheSharesConcurrentRequests(t *testing.T) {
	var h provision.CloudCache[int]
	var wg sync.WaitGroup
	asked := 0 // one call at a time, checked by the race detector
	for range 50 {
		wg.Go(func() {
			got, err := h.Get(t.Context(), "", time.Time{}.Add(time.Hour), func(context.Context) (int, error) {
				asked++
				return asked, nil
			})
			if got != 1 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func TestIsValidPrice(t *testing.T) {
	for usd, want := range map[float64]bool{0.0001: true, 55.04: true, 1000: true, 1000.01: false, 0: false, -1: false} {
		if provision.IsValidPrice(usd) != want {
			t.Errorf("%g: got %v", usd, !want)
		}
	}
}
