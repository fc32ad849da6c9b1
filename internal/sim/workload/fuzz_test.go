package workload

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// checkTrace reads arbitrary bytes: no panic, and rows are valid.
func checkTrace(t *testing.T, data []byte) {
	o := TraceOptions{Seed: 1, RateScale: 2, MaxInput: 5000, Weights: []Weight{{"us", 2}, {"eu", 1}}}
	tr, err := OpenTrace("f", bytes.NewReader(data), o)
	if err != nil {
		return
	}
	last := time.Duration(0)
	for range 500 {
		row, err := tr.Next()
		if err != nil {
			return
		}
		switch {
		case row.At < last:
			t.Fatalf("row %d comes at %s, after one at %s", row.Number, row.At, last)
		case row.InputTokens < 0 || row.InputTokens > 5000 || row.OutputTokens < 0 || row.OutputTokens > maxTokens:
			t.Fatalf("row %d: lengths %d and %d", row.Number, row.InputTokens, row.OutputTokens)
		case row.Region != "us" && row.Region != "eu":
			t.Fatalf("row %d: region %q", row.Number, row.Region)
		}
		if prompt := row.AppendPrompt(nil, 1); len(prompt) != wordBytes*row.InputTokens {
			t.Fatalf("row %d: %d bytes for %d tokens", row.Number, len(prompt), row.InputTokens)
		}
		last = row.At
	}
}

func FuzzJSONLTraces(f *testing.F) {
	f.Add([]byte(mooncakeText))
	f.Add([]byte(bailianText))
	f.Add([]byte(`{"chat_id":1,"timestamp":1e400,"input_length":-0,"output_length":1.0,"hash_ids":[1,]}`))
	f.Fuzz(func(t *testing.T, data []byte) { checkTrace(t, data) })
}

func FuzzCSVTraces(f *testing.F) {
	for _, text := range []string{azure2023Text, azure2024Text, azureOldText, burstText, burstTextV2, sageText} {
		f.Add([]byte(text))
	}
	f.Add([]byte("t_s,input_tokens,output_tokens\n\"1\n,2\",3,4\n"))
	f.Fuzz(func(t *testing.T, data []byte) { checkTrace(t, data) })
}

func FuzzRateTables(f *testing.F) {
	f.Add([]byte(rateTable(3, 5, "Gamma", "0.2", "2")))
	f.Add([]byte(rateTable(2, 5, "Weibull", "0.2", "2")))
	f.Add([]byte("t_s,total_rps\n0,1000000\n0.0000001,3\n"))
	f.Fuzz(func(t *testing.T, data []byte) { checkTrace(t, data) })
}

func FuzzCountTokens(f *testing.F) {
	f.Add(" abc def", 3)
	f.Fuzz(func(t *testing.T, text string, n int) {
		n = min(max(n, 0), 1000)
		count := CountTokens(text)
		if count < 0 || count > len(text) || len(text) > 0 && count < (len(text)+8)/9/4 {
			t.Fatalf("%d tokens in %d bytes", count, len(text))
		}
		generated := Text(n, uint64(len(text)))
		if text == "" || !strings.HasPrefix(text, " ") && !isWord(text[0]) {
			if got := CountTokens(generated + text); n > 0 && got != n+count {
				t.Fatalf("%d + %d tokens are %d together", n, count, got)
			}
		}
	})
}
