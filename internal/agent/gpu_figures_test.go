package agent

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"skyserve/internal/telemetry"
)

// nvidia-smi's figures are read; what a GPU does not report is unknown, never zero.
func TestGPUFigures(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if gpus, err := gpuStats(t.Context(), "nvidia-smi"); gpus != nil || err != nil {
		t.Errorf("without nvidia-smi: %v, %v", gpus, err)
	}
	script := "#!/bin/sh\necho \"$@\" > " + filepath.Join(dir, "args") + "\necho '37, 61440, 81559, 54'\necho '[N/A], 12, 23034, [Not Supported]'\n"
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	gpus, err := gpuStats(t.Context(), "nvidia-smi")
	if err != nil || len(gpus) != 2 {
		t.Fatalf("got %v, %v", gpus, err)
	}
	if g := gpus[0]; *g.Utilisation != 0.37 || *g.MemoryUsed != 61440<<20 || *g.Memory != 81559<<20 || *g.Temperature != 54 {
		t.Errorf("got %v %v %v %v", *g.Utilisation, *g.MemoryUsed, *g.Memory, *g.Temperature)
	}
	if g := gpus[1]; g.Utilisation != nil || g.Temperature != nil || *g.MemoryUsed != 12<<20 {
		t.Errorf("got %+v", g)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || strings.TrimSpace(string(args)) != "--query-gpu=utilization.gpu,memory.used,memory.total,temperature.gpu --format=csv,noheader,nounits" {
		t.Errorf("nvidia-smi was called with %q, %v", args, err)
	}
	for _, wrong := range []string{"1, 2\n", "1, 2, 3, 4, 5\n", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"} {
		if gpus, err := parseGPUStats(wrong); err == nil {
			t.Errorf("%q: got %v", wrong, gpus)
		}
	}
	for _, odd := range []string{"-1, 0, 0, 0", "101, 0, 0, 0", "NaN, 0, 0, 0", "1e400, 0, 0, 0"} {
		if gpus, err := parseGPUStats(odd); err != nil || gpus[0].Utilisation != nil {
			t.Errorf("%q: got %v, %v", odd, gpus, err)
		}
	}
}

// The status of an agent has the last figures, and none when they cannot be read.
func TestStatusHasGPUFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot := 80.0
		var fail atomic.Bool
		a, out := watched(t, GPUWatch{Log: func() (io.ReadCloser, error) { return nil, fs.ErrNotExist }, Stats: func(context.Context) ([]telemetry.GPUFigures, error) {
			if fail.Load() {
				return nil, os.ErrDeadlineExceeded
			}
			return []telemetry.GPUFigures{{Temperature: &hot}}, nil
		}})
		settle()
		if s := a.Status(); len(s.GPUStats) != 1 || *s.GPUStats[0].Temperature != 80 {
			t.Errorf("got %+v", s.GPUStats)
		}
		fail.Store(true)
		settle()
		settle()
		if s := a.Status(); s.GPUStats != nil || strings.Count(out.String(), "reading the figures of the GPUs failed") != 1 {
			t.Errorf("after a failure: %+v, logged\n%s", s.GPUStats, out.String())
		}
	})
}

// The engine tells its version at /version (vLLM) or /server_info (SGLang); others have none.
func TestEngineVersion(t *testing.T) {
	for name, c := range map[string]struct{ path, body, want string }{
		"vllm":     {"/version", `{"version":"0.11.0"}`, "0.11.0"},
		"sglang":   {"/server_info", `{"model_path":"m","version":"0.5.4"}`, "0.5.4"},
		"neither":  {"/health", `ok`, ""},
		"not JSON": {"/version", "0.11.0", ""},
		"hostile":  {"/version", `{"version":"1\u001b[2J` + strings.Repeat("x", 100) + `"}`, "1[2J" + strings.Repeat("x", 59)},
		"long":     {"/version", `{"version":"` + strings.Repeat("x", 63) + `éé"}`, strings.Repeat("x", 63)},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc(c.path, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer k" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = w.Write([]byte(c.body))
		})
		server := httptest.NewServer(mux)
		if got := engineVersion(t.Context(), server.URL+"/health", "k"); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		server.Close()
	}
	if got := engineVersion(t.Context(), "", ""); got != "" {
		t.Errorf("without a URL: %q", got)
	}
}
