//go:build !race

// The packages of the official clients are large: the race detector's build of them takes minutes. The tests of lbd/proxy
// and lbd/batch cover the same code under the race detector.

package lbd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/zeebo/xxh3"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
)

// official returns the official client for a balancer.
func official(t *testing.T, n *node) openai.Client {
	return openai.NewClient(option.WithBaseURL(n.public+"/v1"), option.WithAPIKey("any"), option.WithHTTPClient(client(t)), option.WithMaxRetries(0))
}

// servingEngines starts a balancer with simulated engines that have an adapter.
func servingEngines(t *testing.T, engines int) *node {
	cfg := config("lb-us", "local/us")
	cfg.Models = []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}, LoRA: []string{"sql"}}}
	for i := range engines {
		url := simulatedAs(t, server.Options{Model: "llama", Speed: 1000, LoRA: []string{"sql"}})
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: fmt.Sprintf("us-%d", i), URL: url, Model: "llama", Kind: service.EngineSim})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	testkit.Eventually(t, "all replicas are ready", func() bool { return n.readyReplicas(t) == engines })
	return n
}

func TestOfficialClientsResponses(t *testing.T) {
	n := servingEngines(t, 3)
	api, ctx := official(t, n), context.Background()
	ask := func(text string) responses.ResponseNewParams {
		return responses.ResponseNewParams{
			Model: "chat-small", MaxOutputTokens: openai.Int(16),
			Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
		}
	}
	first, err := api.Responses.New(ctx, ask("Where do you run?"))
	if err != nil || first.OutputText() == "" || first.Usage.OutputTokens != 16 {
		t.Fatalf("%+v, %v", first, err)
	}
	before := first.Usage.InputTokens
	previous := first.ID
	for i := range 6 { // although others have capacity, only one replica has the response
		next := ask("And why there?")
		next.PreviousResponseID = openai.String(previous)
		if i%2 == 0 {
			res, err := api.Responses.New(ctx, next)
			if err != nil {
				t.Fatalf("continuing from %s: %v", previous, err)
			}
			if res.Usage.InputTokens <= before || res.Usage.InputTokensDetails.CachedTokens == 0 {
				t.Errorf("usage %+v: the conversation before is missing or was not cached", res.Usage)
			}
			previous, before = res.ID, res.Usage.InputTokens
			continue
		}
		previous = streamResponse(t, api, next)
	}
	kept, err := api.Responses.Get(ctx, previous, responses.ResponseGetParams{})
	if err != nil || kept.ID != previous || kept.OutputText() == "" {
		t.Errorf("fetched again: %+v, %v", kept, err)
	}
	items, err := api.Responses.InputItems.List(ctx, previous, responses.InputItemListParams{})
	if err != nil || len(items.Data) != 1 || items.Data[0].Content.OfInputItemContentList[0].Text != "And why there?" {
		t.Errorf("input items: %+v, %v", items, err)
	}
	if err := api.Responses.Delete(ctx, previous); err != nil {
		t.Errorf("deleting: %v", err)
	}
	var gone *openai.Error
	if _, err := api.Responses.Get(ctx, previous, responses.ResponseGetParams{}); !errors.As(err, &gone) || gone.StatusCode != http.StatusNotFound {
		t.Errorf("a deleted response: %v", err)
	}
	lost := ask("And then?")
	lost.PreviousResponseID = openai.String("resp_of_another_time")
	var refused *openai.Error
	if _, err = api.Responses.New(ctx, lost); !errors.As(err, &refused) || refused.StatusCode != http.StatusBadRequest || refused.Code != "previous_response_not_found" {
		t.Errorf("an unknown response: %v", err)
	}
	n.quiet(t)
}

// streamResponse streams a response and returns its id.
func streamResponse(t *testing.T, api openai.Client, ask responses.ResponseNewParams) string {
	t.Helper()
	stream := api.Responses.NewStreaming(t.Context(), ask)
	defer stream.Close()
	var deltas strings.Builder
	var last responses.Response
	for stream.Next() {
		switch e := stream.Current(); e.Type {
		case "response.output_text.delta":
			deltas.WriteString(e.Delta)
		case "response.completed", "response.incomplete":
			last = e.Response
		}
	}
	if err := stream.Err(); err != nil || deltas.Len() == 0 || last.OutputText() != deltas.String() {
		t.Fatalf("streamed %q, at the end %q: %v", deltas.String(), last.OutputText(), err)
	}
	return last.ID
}

func TestOfficialClientsOtherCalls(t *testing.T) {
	n := servingEngines(t, 1)
	api, ctx := official(t, n), context.Background()

	list, err := api.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: "chat-small", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"river", "market"}}, Dimensions: openai.Int(8),
	})
	if err != nil || len(list.Data) != 2 || len(list.Data[0].Embedding) != 8 || list.Usage.PromptTokens == 0 {
		t.Errorf("embeddings %+v, %v", list, err)
	}

	models, err := api.Models.List(ctx)
	var names []string
	if err == nil {
		for _, m := range models.Data {
			names = append(names, m.ID)
		}
	}
	if got := strings.Join(names, " "); got != "chat-small llama sql" {
		t.Errorf("models %q, %v", got, err)
	}
	if m, err := api.Models.Get(ctx, "sql"); err != nil || m.ID != "sql" {
		t.Errorf("model sql: %+v, %v", m, err)
	}

	stream := api.Completions.NewStreaming(ctx, openai.CompletionNewParams{
		Model: "sql", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("select")}, MaxTokens: openai.Int(8),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	})
	pieces, tokens := 0, int64(0)
	for stream.Next() {
		pieces += len(stream.Current().Choices)
		tokens += stream.Current().Usage.CompletionTokens
	}
	if err := stream.Err(); err != nil || pieces != 8 || tokens != 8 {
		t.Errorf("%d pieces, %d tokens: %v", pieces, tokens, err)
	}

	var refused *openai.Error // there is no store
	if _, err := api.Files.List(ctx, openai.FileListParams{}); !errors.As(err, &refused) || refused.StatusCode != http.StatusServiceUnavailable || refused.Code != "no_store" {
		t.Errorf("files: %v", err)
	}
	if _, err := api.Batches.List(ctx, openai.BatchListParams{}); !errors.As(err, &refused) || refused.StatusCode != http.StatusServiceUnavailable || refused.Code != "no_store" {
		t.Errorf("batches: %v", err)
	}

	// Endpoints without a method in the client.
	for path, body := range map[string]string{
		"/v1/rerank": `{"model":"chat-small","query":"water","documents":["river","market"]}`,
		"/tokenize":  `{"model":"chat-small","prompt":"one two three"}`,
	} {
		want := map[string]string{"/v1/rerank": `"relevance_score"`, "/tokenize": `"count":`}[path]
		resp, err := client(t).Post(n.public+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s returns %d %s", path, resp.StatusCode, text)
		}
	}
	n.quiet(t)
}

// toolEngine is an engine that calls a function if the request contains one, follows a given
// schema, and stores its requests.
func toolEngine(requested chan<- map[string]json.RawMessage) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body map[string]json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		requested <- body
		if string(body["stream"]) != "true" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"{\"city\":\"Paris\"}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, delta := range []string{
			`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"\"Paris\"}"}}]}`,
		} {
			fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":null}]}\n\n", delta)
		}
		_, _ = io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`+"\n\n")
		_, _ = io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`+"\n\ndata: [DONE]\n\n")
	}
}

func TestOfficialClientsToolsAndForms(t *testing.T) {
	requested := make(chan map[string]json.RawMessage, 1)
	n := start(t, config("lb-us", "local/us", service.ReplicaConfig{ID: "us-0", URL: serving(t, toolEngine(requested)), Model: "llama"}), Options{})
	ready(t, n)
	api, ctx := official(t, n), context.Background()
	ask := openai.ChatCompletionNewParams{
		Model: "llama", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the weather in Paris?")},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: "weather", Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}},
		})},
	}
	stream := api.Chat.Completions.NewStreaming(ctx, ask)
	var whole openai.ChatCompletionAccumulator
	for stream.Next() {
		whole.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil || len(whole.Choices) != 1 || len(whole.Choices[0].Message.ToolCalls) != 1 {
		t.Fatalf("%+v, %v", whole.ChatCompletion, err)
	}
	if call := whole.Choices[0].Message.ToolCalls[0]; call.ID != "call_1" || call.Function.Name != "weather" || call.Function.Arguments != `{"city":"Paris"}` {
		t.Errorf("call %+v", call)
	}
	if got := <-requested; !bytes.Contains(got["tools"], []byte(`"weather"`)) {
		t.Errorf("the engine was offered %s", got["tools"])
	}

	ask.Tools = nil
	ask.Messages = append(ask.Messages, whole.Choices[0].Message.ToParam(), openai.ToolMessage("sunny", "call_1"))
	ask.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{
		JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "place", Strict: openai.Bool(true), Schema: map[string]any{"type": "object"}},
	}}
	formed, err := api.Chat.Completions.New(ctx, ask)
	var place struct{ City string }
	if err != nil || json.Unmarshal([]byte(formed.Choices[0].Message.Content), &place) != nil || place.City != "Paris" {
		t.Errorf("%+v, %v", formed, err)
	}
	if got := <-requested; !bytes.Contains(got["response_format"], []byte(`"strict":true`)) || !bytes.Contains(got["messages"], []byte(`"tool_call_id":"call_1"`)) {
		t.Errorf("the engine got the format %s after %s", got["response_format"], got["messages"])
	}
	n.quiet(t)
}

func TestOfficialClientCancels(t *testing.T) {
	p := &paced{word: make(chan string), gone: make(chan struct{}, 1)}
	n := start(t, config("lb-us", "local/us", service.ReplicaConfig{ID: "us-0", URL: serving(t, p.serve), Model: "llama"}), Options{})
	ready(t, n)
	api := official(t, n)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { p.word <- "one" }()
	stream := api.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: "llama", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Count.")},
	})
	if !stream.Next() || stream.Current().Choices[0].Delta.Content != "one" {
		t.Fatalf("%+v, %v", stream.Current(), stream.Err())
	}
	cancel()
	<-p.gone
	if stream.Next() || !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("it continues: %v", stream.Err())
	}
	n.quiet(t)
}

// The official client counts tokens, transcribes recordings and receives speech.
func TestOfficialClientUsesAudio(t *testing.T) {
	n := simulatedNode(t, Options{})
	api := openai.NewClient(option.WithBaseURL(n.public+"/v1"), option.WithAPIKey("any"), option.WithHTTPClient(client(t)), option.WithMaxRetries(0))
	ctx := context.Background()

	counted, err := api.Responses.InputTokens.Count(ctx, responses.InputTokenCountParams{
		Model: openai.String("small"), Input: responses.InputTokenCountParamsInputUnion{OfString: openai.String("How long is this?")},
	})
	if err != nil || counted.InputTokens < 5 {
		t.Errorf("the count is %+v, %v", counted, err)
	}

	recording := bytes.Repeat([]byte("\x00\xffRIFF\r\n--"), 100_000)
	transcript, err := api.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{
		Model: "small", File: openai.File(bytes.NewReader(recording), `a "recording".mp3`, "audio/mpeg"),
	})
	if want := fmt.Sprintf("A recording of %d bytes with the hash %016x.", len(recording), xxh3.Hash(recording)); err != nil || transcript.Text != want {
		t.Errorf("the transcript is %+v, %v; want %s", transcript, err, want)
	}

	speech, err := api.Audio.Speech.New(ctx, openai.AudioSpeechNewParams{Model: "small", Input: "two words", Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: openai.String("alloy")}})
	if err != nil {
		t.Fatal(err)
	}
	defer speech.Body.Close()
	if wav, err := io.ReadAll(speech.Body); err != nil || len(wav) != 44+2*800 || !bytes.HasPrefix(wav, []byte("RIFF")) {
		t.Errorf("%d bytes of speech, %v", len(wav), err)
	}
}
