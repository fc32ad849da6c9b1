package openai

import (
	"testing"
)

func BenchmarkParse(b *testing.B) {
	body := []byte(promptBody(16<<10, true))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		c, err := parseCall(body)
		if err != nil {
			b.Fatal(err)
		}
		Render(1, endpoints[chatPath], &c, ResolvedModel{Model: testModel}).Release()
	}
}
