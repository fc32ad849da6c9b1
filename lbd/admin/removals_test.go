package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

type fakeRemovals struct {
	handles []string
	err     error
}

func (f *fakeRemovals) AnnounceRemovals(_ context.Context, handles []string) error {
	f.handles = append(f.handles, handles...)
	return f.err
}

func TestRemovalsAreAnnounced(t *testing.T) {
	removals := &fakeRemovals{}
	a := api(&balancer{}, func(o *Options) { o.Removals = removals })
	srv := httptest.NewServer(http.HandlerFunc(a.ServeCertified))
	defer srv.Close()
	if err := telemetry.NewClient(srv.URL, srv.Client()).AnnounceRemovals(t.Context(), []string{"i-1", "i-2"}); err != nil || !slices.Equal(removals.handles, []string{"i-1", "i-2"}) {
		t.Errorf("announced %q, %v", removals.handles, err)
	}
	down := api(&balancer{}, func(o *Options) { o.Removals = &fakeRemovals{err: errors.New("no leader")} })
	for _, c := range []struct {
		api    *API
		body   string
		status int
		want   string
	}{
		{a, "{", 400, "reading the machines: unexpected EOF"},
		{a, `{"machines":[]}`, 400, "at least one id"},
		{a, `{"machines":["i-1",""]}`, 400, "none may be empty"},
		{down, `{"machines":["i-1"]}`, 503, "the store does not respond"},
		{api(&balancer{}, nil), `{"machines":["i-1"]}`, 404, "no store"},
	} {
		if status, body := call(c.api, "POST", "/v1/service/removals", c.body); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: got %d %s", c.body, status, body)
		}
	}
}
