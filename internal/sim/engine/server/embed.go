package server

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"

	"github.com/zeebo/xxh3"

	"skyserve/internal/sim/engine"
)

// Limits of /v1/embeddings, those of OpenAI.
const (
	defaultDimensions = 384
	maxDimensions     = 4096
	maxInputs         = 2048
)

type embeddingBody struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	Dimensions     *int            `json:"dimensions"`
	EncodingFormat string          `json:"encoding_format"`
}

type embeddingList struct {
	Object string      `json:"object"`
	Model  string      `json:"model"`
	Data   []embedding `json:"data"`
	Usage  struct {
		PromptTokens int `json:"prompt_tokens"`
		TotalTokens  int `json:"total_tokens"`
	} `json:"usage"`
}

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float32, or base64 of its little-endian bytes
}

// serveEmbeddings returns vectors of length 1 that depend only on the input and the model's name. They
// take no model time.
func (s *Server) serveEmbeddings(w http.ResponseWriter, r *http.Request) {
	var b embeddingBody
	if err := s.readBody(w, r, &b); err != nil {
		writeError(w, err)
		return
	}
	list, err := s.embed(&b)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) embed(b *embeddingBody) (*embeddingList, error) {
	model, a, err := s.resolve(b.Model)
	if err != nil {
		return nil, err
	}
	inputs, err := readInputs(b.Input)
	if err != nil {
		return nil, err
	}
	dimensions := defaultDimensions
	if b.Dimensions != nil {
		dimensions = *b.Dimensions
	}
	if dimensions < 1 || dimensions > maxDimensions {
		return nil, malformed("dimensions", fmt.Sprintf("dimensions: must be from 1 to %d, got %d", maxDimensions, dimensions))
	}
	if f := b.EncodingFormat; f != "" && f != "float" && f != "base64" {
		return nil, malformed("encoding_format", fmt.Sprintf("encoding_format: must be float or base64, got %q", f))
	}
	list := &embeddingList{Object: "list", Model: model}
	for i, input := range inputs {
		e := embedding{Object: "embedding", Index: i, Embedding: vector(input, uint64(a), dimensions)}
		if b.EncodingFormat == "base64" {
			e.Embedding = packed(e.Embedding.([]float32))
		}
		list.Data = append(list.Data, e)
		list.Usage.PromptTokens += engine.CountTokens(input)
	}
	list.Usage.TotalTokens = list.Usage.PromptTokens
	return list, nil
}

// readInputs parses a string or an array of strings.
func readInputs(raw json.RawMessage) ([]string, error) {
	var one string
	if firstByte(raw) == '"' && json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if firstByte(raw) != '[' || json.Unmarshal(raw, &many) != nil {
		return nil, malformed("input", "input: must be a string or an array of strings, got "+excerpt(raw))
	}
	if len(many) < 1 || len(many) > maxInputs {
		return nil, malformed("input", fmt.Sprintf("input: must contain 1 to %d strings, got %d", maxInputs, len(many)))
	}
	return many, nil
}

// vector returns a random direction seeded by the hash of a text.
func vector(text string, seed uint64, dimensions int) []float32 {
	h := xxh3.HashString128(text)
	rng := rand.New(rand.NewPCG(h.Hi^seed, h.Lo))
	v, sum := make([]float32, dimensions), 0.0
	for i := range v {
		x := rng.NormFloat64()
		v[i] = float32(x)
		sum += x * x
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
	return v
}

// packed returns OpenAI's base64 encoding of a vector.
func packed(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
