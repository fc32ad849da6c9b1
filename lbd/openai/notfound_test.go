package openai

import "testing"

// The parameter and the code decide in any order; only without them, the message does.
func TestNames404Model(t *testing.T) {
	for body, want := range map[string]bool{
		`{"error":{"message":"The model x does not exist","param":null,"code":404}}`:                true,
		`{"error":{"message":"unknown","param":"model"}}`:                                           true,
		`{"error":{"message":"unknown","param":null,"code":"model_not_found"}}`:                     true,
		`{"error":{"message":"no such tool","param":"tools","code":"model_not_found"}}`:             true,
		`{"error":{"message":"The model x is not available","code":"model_not_available"}}`:         true,
		`{"error":{"message":"Model not found, inaccessible, or not deployed","code":"NOT_FOUND"}}`: true,
		`{"error":{"message":"tool model_x not found","param":"tools"}}`:                            false,
		`{"error":{"param":"tools","message":"tool model_x not found"}}`:                            false,
		`{"error":{"message":"response of the model x not found","code":"response_not_found"}}`:     false,
		`{"message":"response of the model x not found","param":"previous_response_id","code":404}`: false,
		`{"object":"error","message":"The model x does not exist.","param":null,"code":404}`:        true,
		`{"detail":"Not Found"}`: false,
		`no JSON about a model`:  false,
	} {
		if got := Names404Model([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}
