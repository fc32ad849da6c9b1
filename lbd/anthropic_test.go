//go:build !race

// The packages of the official clients are large: the race detector's build of them takes minutes. The tests of lbd/proxy
// and lbd/batch cover the same code under the race detector.

package lbd

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
)

// anthropicService starts a balancer with API keys, two simulated engines, and one model with an alias.
// The key "small" is limited to one request per minute.
func anthropicService(t *testing.T) *node {
	t.Setenv("KEYS", "sk name=acme\nsmall name=small requests_per_minute=1")
	cfg := config("lb-us", "local/us")
	cfg.Models = []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}}}
	cfg.Balancer.Auth, cfg.Balancer.ExposeCache = &service.Auth{KeysFrom: "env:KEYS"}, true
	for i := range 2 {
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{
			ID: fmt.Sprintf("us-%d", i), URL: simulatedAs(t, server.Options{Model: "llama", Speed: 1000}), Model: "llama", Kind: service.EngineSim,
		})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	testkit.Eventually(t, "all replicas are ready", func() bool { return n.readyReplicas(t) == 2 })
	return n
}

// anthropicClient returns the official client for a balancer. It sends the key as x-api-key.
func anthropicClient(t *testing.T, n *node, key string) anthropic.Client {
	return anthropic.NewClient(option.WithoutEnvironmentDefaults(), option.WithBaseURL(n.public), option.WithAPIKey(key), option.WithHTTPClient(client(t)), option.WithMaxRetries(0))
}

// The official client works with a balancer that has simulated engines: messages, streams, tools and
// the number of tokens. A conversation stays at the replica that has its prefix.
func TestOfficialAnthropicClient(t *testing.T) {
	n := anthropicService(t)
	api := anthropicClient(t, n, "sk")
	schema := anthropic.ToolInputSchemaParam{Properties: map[string]any{"days": map[string]any{"type": "integer"}}}
	ask := anthropic.MessageNewParams{
		Model: "chat-small", MaxTokens: 24,
		System:   []anthropic.TextBlockParam{{Text: "Answer briefly.", CacheControl: anthropic.NewCacheControlEphemeralParam()}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Where do you run?"))},
		Tools:    []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(schema, "weather")},
	}
	first, err := api.Messages.New(t.Context(), ask)
	if err != nil || len(first.Content) != 1 || first.Content[0].Text == "" || first.Usage.OutputTokens != 24 || first.StopReason != anthropic.StopReasonMaxTokens {
		t.Fatalf("%+v, %v", first, err)
	}
	if streamed := accumulate(t, api, ask); streamed.Content[0].Text != first.Content[0].Text || streamed.Usage.OutputTokens != 24 || streamed.StopReason != first.StopReason {
		t.Errorf("streamed %+v, in one piece %+v", streamed, first)
	}

	ask.Messages = append(ask.Messages, first.ToParam(), anthropic.NewUserMessage(anthropic.NewTextBlock("And the weather there?")))
	ask.MaxTokens, ask.ToolChoice = 200, anthropic.ToolChoiceParamOfTool("weather")
	call := accumulate(t, api, ask)
	if c := call.Content[0]; c.Type != "tool_use" || c.Name != "weather" || call.StopReason != anthropic.StopReasonToolUse || call.Usage.CacheReadInputTokens == 0 {
		t.Fatalf("the call is %+v", call)
	}
	ask.Messages = append(ask.Messages, call.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(call.Content[0].ID, "sunny", false)))
	ask.ToolChoice = anthropic.ToolChoiceUnionParam{}
	last, err := api.Messages.New(t.Context(), ask)
	if err != nil || last.Content[0].Type != "text" || last.Usage.CacheReadInputTokens == 0 {
		t.Errorf("%+v, %v", last, err)
	}

	count, err := api.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{
		Model: ask.Model, Messages: ask.Messages[:1], System: anthropic.MessageCountTokensParamsSystemUnion{OfTextBlockArray: ask.System},
		Tools: []anthropic.MessageCountTokensToolUnionParam{anthropic.MessageCountTokensToolParamOfTool(schema, "weather")},
	})
	if u := first.Usage; err != nil || count.InputTokens != u.InputTokens+u.CacheReadInputTokens {
		t.Errorf("%+v, %v, the message had %+v", count, err, first.Usage)
	}
	n.quiet(t)
}

// accumulate streams a message to its end.
func accumulate(t *testing.T, api anthropic.Client, ask anthropic.MessageNewParams) (m anthropic.Message) {
	t.Helper()
	stream := api.Messages.NewStreaming(t.Context(), ask)
	defer stream.Close()
	for stream.Next() {
		if err := m.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil || len(m.Content) == 0 {
		t.Fatalf("streamed %+v, %v", m, err)
	}
	return m
}

// The official client reads the balancer's errors with their types and request ids. A stream that the
// client aborts leaves nothing in flight.
func TestOfficialAnthropicClientErrors(t *testing.T) {
	n := anthropicService(t)
	ask := anthropic.MessageNewParams{Model: "chat-small", MaxTokens: 24, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))}}
	unknown := ask
	unknown.Model = "gpt-9"
	small := anthropicClient(t, n, "small")
	if _, err := small.Messages.New(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		api    anthropic.Client
		ask    anthropic.MessageNewParams
		status int
		kind   anthropic.ErrorType
	}{
		"wrong key": {anthropicClient(t, n, "other"), ask, http.StatusUnauthorized, anthropic.ErrorTypeAuthenticationError},
		"limit":     {small, ask, http.StatusTooManyRequests, anthropic.ErrorTypeRateLimitError},
		"model":     {anthropicClient(t, n, "sk"), unknown, http.StatusNotFound, anthropic.ErrorTypeNotFoundError},
	} {
		var refused *anthropic.Error
		if _, err := c.api.Messages.New(t.Context(), c.ask); !errors.As(err, &refused) || refused.StatusCode != c.status || refused.Type() != c.kind || refused.RequestID == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ask.MaxTokens = 2000
	stream := anthropicClient(t, n, "sk").Messages
	events := stream.NewStreaming(t.Context(), ask)
	for range 5 {
		events.Next()
	}
	if err := errors.Join(events.Err(), events.Close()); err != nil {
		t.Error(err)
	}
	n.quiet(t)
}
