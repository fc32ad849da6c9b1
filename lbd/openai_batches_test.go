//go:build !race

// The packages of the official clients are large: the race detector's build of them takes minutes. The tests of lbd/proxy
// and lbd/batch cover the same code under the race detector.

package lbd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// The official client runs a batch through its whole life; the requests are those of the key and tenant that created it.
func TestOfficialClientRunsBatch(t *testing.T) {
	t.Parallel()
	srv := batchStore(t)
	cfg := batchConfig(t, "lb-us", srv.URL())
	cfg.Balancer.Auth = &service.Auth{KeysFrom: keysFile(t, "sk-a name=ann tenant=acme\nsk-b name=bob tenant=other")}
	n := start(t, cfg, Options{})
	ready(t, n)
	as := func(key string) openai.Client {
		return openai.NewClient(option.WithBaseURL(n.public+"/v1"), option.WithAPIKey(key), option.WithHTTPClient(client(t)), option.WithMaxRetries(0))
	}
	api, foreign, ctx := as("sk-a"), as("sk-b"), t.Context()
	const requests = 70
	var input strings.Builder
	for i := range requests {
		fmt.Fprintf(&input, `{"custom_id":"r%d","method":"POST","url":"/v1/chat/completions","body":{"model":"chat-small","max_tokens":4,"messages":[{"role":"user","content":"question %d"}]}}`+"\n", i, i)
	}
	var file *openai.FileObject
	testkit.Eventually(t, "the store is connected", func() bool {
		var err error
		file, err = api.Files.New(ctx, openai.FileNewParams{File: openai.File(strings.NewReader(input.String()), "questions.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch})
		return err == nil
	})
	if file.Bytes != int64(input.Len()) || file.Filename != "questions.jsonl" || file.Purpose != openai.FileObjectPurposeBatch {
		t.Errorf("file: %+v", file)
	}
	b, err := api.Batches.New(ctx, openai.BatchNewParams{
		InputFileID: file.ID, Endpoint: openai.BatchNewParamsEndpointV1ChatCompletions, CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
		Metadata: map[string]string{"job": "night"},
	})
	if err != nil || b.Status != openai.BatchStatusValidating || b.Metadata["job"] != "night" {
		t.Fatalf("%+v, %v", b, err)
	}
	testkit.Eventually(t, "the batch is completed", func() bool {
		if b, err = api.Batches.Get(ctx, b.ID); err != nil || b.Status == openai.BatchStatusFailed {
			t.Fatalf("%+v, %v", b, err)
		}
		return b.Status == openai.BatchStatusCompleted
	})
	if b.RequestCounts.Completed != requests || b.RequestCounts.Total != requests || b.ErrorFileID != "" || b.Model != "chat-small" {
		t.Errorf("%+v", b)
	}
	if u := b.Usage; u.OutputTokens != 4*requests || u.InputTokens < requests || u.TotalTokens != u.InputTokens+u.OutputTokens || !u.JSON.InputTokensDetails.Valid() || !u.JSON.OutputTokensDetails.Valid() {
		t.Errorf("usage: %s", u.RawJSON())
	}
	content, err := api.Files.Content(ctx, b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(content.Body)
	content.Body.Close()
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		if !strings.Contains(line, fmt.Sprintf(`"custom_id":"r%d"`, i)) || !strings.Contains(line, `"status_code":200`) || !strings.Contains(line, `"completion_tokens":4`) {
			t.Fatalf("line %d: %s", i, line)
		}
	}
	if len(lines) != requests {
		t.Errorf("%d lines", len(lines))
	}
	batches, err := api.Batches.List(ctx, openai.BatchListParams{Limit: openai.Int(1)})
	if err != nil || len(batches.Data) != 1 || batches.Data[0].ID != b.ID {
		t.Errorf("%+v, %v", batches, err)
	}
	pages := api.Files.ListAutoPaging(ctx, openai.FileListParams{Limit: openai.Int(1)})
	files := 0
	for pages.Next() {
		files++
	}
	if pages.Err() != nil || files != 2 {
		t.Errorf("%d files, %v", files, pages.Err())
	}
	var missing *openai.Error
	if _, err := foreign.Batches.Get(ctx, b.ID); !errors.As(err, &missing) || missing.StatusCode != http.StatusNotFound {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := api.Batches.Cancel(ctx, b.ID); !errors.As(err, &missing) || missing.StatusCode != http.StatusConflict {
		t.Errorf("cancelling: %v", err)
	}
	if gone, err := api.Files.Delete(ctx, b.OutputFileID); err != nil || !gone.Deleted {
		t.Errorf("%+v, %v", gone, err)
	}
	res, err := client(t).Get(n.adminURL + "/usage")
	if err != nil {
		t.Fatal(err)
	}
	usage, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if !strings.Contains(string(usage), `"ann"`) || strings.Contains(string(usage), `"bob","requests":`) {
		t.Errorf("usage: %s", usage)
	}
	res, err = client(t).Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if want := fmt.Sprintf(`skyserve_batch_requests_total{result="completed"} %d`, requests); !strings.Contains(string(metrics), want) {
		t.Errorf("%s is missing in the metrics", want)
	}
	n.quiet(t)
}
