package openai

import (
	"strings"
	"testing"
)

// A coding agent's call: a long system prompt, tools, and many turns with tool results.
func BenchmarkParseMessages(b *testing.B) {
	turn := assistant(`{"type":"text","text":"I read the file."},{"type":"tool_use","id":"t","name":"read","input":{"path": "/src/main.go", "limit": 100}}`) + `,` +
		user(`[{"type":"tool_result","tool_use_id":"t","content":"`+strings.Repeat(`if err != nil {\n\treturn err\n}\n`, 40)+`"}]`) + `,`
	body := []byte(with(turns(strings.Repeat(turn, 40)+user(`"go on"`)), `"tools":[`+strings.TrimSuffix(strings.Repeat(`{"name":"read","description":"Reads a file","input_schema":{"type":"object"}},`, 20), ",")+`]`))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		c, err := parseCall(body)
		if err != nil {
			b.Fatal(err)
		}
		Render(1, endpoints[pathMessages], &c, ResolvedModel{Model: testModel}).Release()
	}
}

// A piece of the text of a message, as it passes.
func BenchmarkMessagesEvent(b *testing.B) {
	c, err := parseCall([]byte(turns(user(`"a"`))))
	if err != nil {
		b.Fatal(err)
	}
	a := Answer{Messages: true, RemainingKeyBytes: 1 << 40, Rendering: Render(1, endpoints[pathMessages], &c, ResolvedModel{Model: testModel})}
	data := EventData([]byte(delta(0, "text_delta", "text", " word")))
	b.ReportAllocs()
	for b.Loop() {
		a.Event(data)
	}
}
