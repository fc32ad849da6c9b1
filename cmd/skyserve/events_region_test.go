package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"skyserve/internal/telemetry"
)

// A region that exists neither in service.yaml nor in a kept event is a mistake, which the error explains. A region
// without matching events is none, and neither is one that cannot be checked.
func TestEventsOfAnUnknownRegion(t *testing.T) {
	for _, tt := range []struct {
		name, region string
		since        string
		service      string // the response; empty = 503
		complete     bool
		code         int
		says         string
	}{
		{"a typing error", "local/uss", "", rightFile, true, exitUsage, "error: --region: must be one of aws/us-east-1, local/eu, local/us, got \"local/uss\"\nhint: did you mean 'local/us'?\n"},
		{"a place that does not exist", "mars", "", rightFile, true, exitUsage, "error: --region: must be one of aws/us-east-1, local/eu, local/us, got \"mars\"\n"},
		{"a region without events", "eu", "", rightFile, true, exitOK, "no events\n"},
		{"a removed region without events in the period", "us-east-1", "2026-11-25T00:00:00Z", rightFile, true, exitOK, "no events\n"},
		{"the service is unknown", "mars", "", "", true, exitOK, "no events\n"},
		{"the store does not respond", "mars", "", rightFile, false, exitOK, "no events\n"},
	} {
		events := []telemetry.Event{{ID: "1", At: eventNoon, Kind: telemetry.EventDeath, Region: "aws/us-east-1", Object: "us-east-1-0", Message: "ended"}}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/service" {
				if tt.service == "" {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				fmt.Fprint(w, tt.service)
				return
			}
			region := r.URL.Query().Get("region")
			report := telemetry.EventReport{Complete: tt.complete, Events: slices.DeleteFunc(slices.Clone(events), func(e telemetry.Event) bool {
				return region != "" && e.Region.ShortName() != region && string(e.Region) != region || r.URL.Query().Has("since")
			})}
			_ = json.NewEncoder(w).Encode(report)
		}))
		args := []string{"events", "--admin", srv.URL, "--region", tt.region}
		if tt.since != "" {
			args = append(args, "--since", tt.since)
		}
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), args, &out, &errOut); code != tt.code || errOut.String() != tt.says || out.Len() > 0 {
			t.Errorf("%s: exit code %d, printed %q, %q", tt.name, code, errOut.String(), out.String())
		}
		srv.Close()
	}
}
