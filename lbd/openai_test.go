//go:build !race

// The packages of the official clients are large: the race detector's build of them takes minutes. The tests of lbd/proxy
// and lbd/batch cover the same code under the race detector.

package lbd

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"skyserve/internal/service"
)

// The official client works with a balancer that has a simulated engine.
func TestOfficialOpenAIClient(t *testing.T) {
	n := start(t, service.BalancerConfig{
		ID: "lb-us", Region: "local/us",
		Models:   []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}}},
		Replicas: []service.ReplicaConfig{{ID: "us-0", URL: simulated(t), Model: "llama"}},
	}, Options{})
	ready(t, n)
	web := client(t)
	api := openai.NewClient(option.WithBaseURL(n.public+"/v1"), option.WithAPIKey("any"), option.WithHTTPClient(web), option.WithMaxRetries(0))
	ctx := context.Background()
	ask := openai.ChatCompletionNewParams{
		Model: "chat-small", MaxTokens: openai.Int(24),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Answer briefly."), openai.UserMessage("Where do you run?")},
	}

	whole, err := api.Chat.Completions.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	if text == "" || whole.Usage.CompletionTokens != 24 || whole.Choices[0].FinishReason != "length" {
		t.Errorf("answer %q, usage %+v, finished by %s", text, whole.Usage, whole.Choices[0].FinishReason)
	}

	stream := api.Chat.Completions.NewStreaming(ctx, ask)
	var streamed strings.Builder
	events := 0
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			streamed.WriteString(c.Delta.Content)
			events++
		}
		if u := stream.Current().Usage; u.TotalTokens != 0 {
			t.Errorf("usage %+v although the client did not ask for it", u)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if streamed.String() != text || events != 24 {
		t.Errorf("streamed %d events, %q; the same question unstreamed gave %q", events, streamed.String(), text)
	}

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream = api.Chat.Completions.NewStreaming(ctx, ask)
	var usage openai.CompletionUsage
	for stream.Next() {
		if u := stream.Current().Usage; u.TotalTokens != 0 {
			usage = u
		}
	}
	if err := stream.Err(); err != nil || usage.CompletionTokens != 24 || usage.PromptTokensDetails.CachedTokens == 0 {
		t.Errorf("usage %+v, %v; want 24 tokens, and the prompt cached from before", usage, err)
	}

	completion, err := api.Completions.New(ctx, openai.CompletionNewParams{
		Model: "llama", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")}, MaxTokens: openai.Int(8),
	})
	if err != nil || completion.Usage.CompletionTokens != 8 {
		t.Errorf("completion %+v, %v", completion, err)
	}

	models, err := api.Models.List(ctx)
	if err != nil || len(models.Data) != 2 {
		t.Errorf("models %+v, %v", models, err)
	}

	ask.Model = "gpt-9"
	var refused *openai.Error
	if _, err = api.Chat.Completions.New(ctx, ask); !errors.As(err, &refused) || refused.StatusCode != http.StatusNotFound || refused.Code != "model_not_found" {
		t.Errorf("an unknown model: %v", err)
	}
}
