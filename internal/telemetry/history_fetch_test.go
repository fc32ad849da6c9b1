package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestFetchHistory(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("since") != "5" {
			http.Error(w, "since", http.StatusBadRequest)
			return
		}
		w.Write([]byte(`{"complete":false,"points":[{"minute":7,"balancer":"b","region":"us","model":"m","tier":"NIW","prompt_tokens":3}]}`))
	})
	mux.HandleFunc("GET /week.csv", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("minute,model,prompt_tokens\n1,m,2\n2,m,3\n"))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	points, complete, err := FetchHistory(t.Context(), srv.URL, 5, nil)
	if err != nil || complete || len(points) != 1 || points[0].PromptTokens != 3 {
		t.Fatalf("admin API: %v, %v, %v", points, complete, err)
	}
	points, complete, err = FetchHistory(t.Context(), srv.URL+"/week.csv", 5, nil)
	if err != nil || !complete || len(points) != 2 {
		t.Fatalf("a file: %v, %v, %v", points, complete, err)
	}
	for target, want := range map[string]string{
		srv.URL + "/nothing": "404",
		"ftp://host/file":    `want an http or https URL, got "ftp://host/file"`,
		"http://":            "want an http or https URL",
	} {
		if _, _, err := FetchHistory(t.Context(), target, 0, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", target, err, want)
		}
	}
}
