package openai

import (
	"encoding/json"
	"testing"
)

// Wherever the model is in the body and however long its real name is, engines receive valid JSON with all changes.
func TestRequestedCountsKeepBodiesValid(t *testing.T) {
	for _, body := range []string{
		`{"model":"alias","stream":true,"messages":[]}`,
		`{"stream":true,"messages":[],"model":"alias"}`,
		`{"stream":true,"messages":[],"model":"alias" }`,
		`{"messages":[],"stream":true,"stream_options":null,"model":"alias"}`,
		`{"messages":[],"stream":true,"stream_options":{},"model":"alias"}`,
		`{"messages":[],"model":"alias","stream":true,"stream_options":{"include_usage":true}}`,
		`{"messages":[],"model":"alias","stream":true,"stream_options":{"continuous_usage_stats":false}}`,
	} {
		for _, real := range []string{"alias", "m", "a-much-longer-name"} {
			c, err := parseCall([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			ch := c.Changes(endpoints["/v1/chat/completions"], ResolvedModel{Model: real})
			sent := applyEdits(nil, []byte(body), ch.Edits)
			sent = applyEdits(nil, sent, []Edit{ch.Counts})
			var got struct {
				Model   string `json:"model"`
				Options struct {
					Usage  bool `json:"include_usage"`
					Counts bool `json:"continuous_usage_stats"`
				} `json:"stream_options"`
			}
			if err := json.Unmarshal(sent, &got); err != nil || got.Model != real || !got.Options.Usage || !got.Options.Counts {
				t.Errorf("%s for %s: %v\n%s", body, real, err, sent)
			}
		}
	}
}
