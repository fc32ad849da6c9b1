package quota

import (
	"testing"

	"skyserve/internal/service"
)

const testModel = "meta-llama/Llama-3.1-8B-Instruct"

// limited returns one key, "sk", with the name acme and the limits of a line.
func limited(t testing.TB, attributes string) []service.APIKey {
	t.Helper()
	keys, err := service.ParseKeys("sk name=acme "+attributes, service.KeyLimits{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
