//go:build !race

// The packages of the official clients are large: the race detector's build of them takes minutes. The tests of lbd/proxy
// and lbd/batch cover the same code under the race detector.

package lbd

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// countingWriter closes third when the third comment of a response was written.
type countingWriter struct {
	http.ResponseWriter
	comments *atomic.Int64
	third    chan struct{}
}

func (w countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w countingWriter) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), ":") && w.comments.Add(1) == 3 {
		close(w.third)
	}
	return w.ResponseWriter.Write(p)
}

// The official client ignores the comments that it receives while a model has no replica.
func TestOfficialOpenAIClientWaitsForAStart(t *testing.T) {
	chosen, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	cfg := core.DefaultConfig(chosen)
	cfg.ScaleToZero, cfg.ProbeInterval = map[string]bool{"llama": true}, time.Hour
	rt, err := proxy.New(proxy.Options{
		Self: service.BalancerConfig{ID: "lb-us", Region: "local/us", Models: []service.BalancerModel{{Name: "llama"}}},
		Core: cfg, Limits: proxy.Limits{HeartbeatDelay: time.Millisecond, HeartbeatInterval: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	rt.Start(ctx)
	t.Cleanup(func() {
		stop()
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	var comments atomic.Int64
	third := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rt.Handler().ServeHTTP(countingWriter{w, &comments, third}, r)
	}))
	t.Cleanup(srv.Close)
	client := openai.NewClient(option.WithBaseURL(srv.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	answered := make(chan string, 1)
	go func() {
		text := ""
		stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
			Model: "llama", MaxTokens: openai.Int(5), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
		})
		for stream.Next() {
			for _, c := range stream.Current().Choices {
				text += c.Delta.Content
			}
		}
		if err := stream.Err(); err != nil {
			text = "error: " + err.Error()
		}
		answered <- text
	}()
	<-third
	if _, err := rt.AddReplica(service.ReplicaConfig{ID: "us-0", URL: simulated(t), Model: "llama"}); err != nil {
		t.Fatal(err)
	}
	rt.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-0", Report: &core.ProbeReport{Ready: true, Pending: policy.Known(0)}})
	if text := <-answered; text == "" || strings.HasPrefix(text, "error") {
		t.Errorf("the client received %q", text)
	}
}
