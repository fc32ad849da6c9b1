package engine

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
)

// Speech generates a response word by word. Like a language model at temperature zero, the next word
// depends only on the seed and all previous tokens: a response that is cut off and sent back as the end
// of the prompt continues exactly as without the cut. Each word is one token.
//
// The zero Speech is valid; NewSpeech is the usual start.
type Speech struct {
	state uint64
	last  wordClass
	open  bool // the next word is not the first on its line
}

// NewSpeech starts a response to a prompt.
func NewSpeech(seed uint64, prompt []Token) Speech {
	s := Speech{state: scramble(seed)}
	for _, t := range prompt {
		s.absorb(t)
	}
	if len(prompt) > 0 {
		end := prompt[len(prompt)-1]
		s.last = classOf[end]
		s.open = end != newline
	}
	return s
}

// Next returns the next word: its token and its text, which starts with a space except at the start of
// a line.
func (s *Speech) Next() (Token, string) {
	draw := scramble(s.state)
	class := grammar[s.last][draw>>61]
	words := vocabulary[class]
	w := &words[(draw&0xffffffff)*uint64(len(words))>>32]
	form := &w.inside
	if !s.open {
		form = &w.opening
	}
	s.last, s.open = class, true
	s.absorb(form.token)
	return form.token, form.text
}

// DrawLength returns the length of the response without a limit by the client: log-normal with median 160
// and sigma 0.75, from 1 to 512, drawn from the current state, so that equal prompts get equal lengths.
func (s Speech) DrawLength() int {
	r := rand.New(rand.NewPCG(s.state, lengthStream))
	n := int(math.Round(160 * math.Exp(0.75*r.NormFloat64())))
	return min(max(n, 1), MaxDrawnTokens)
}

// MaxDrawnTokens is the maximum of DrawLength.
const MaxDrawnTokens = 512

// lengthStream separates the draw of a length from other draws of a state.
const lengthStream = 0x6c656e677468

func (s *Speech) absorb(t Token) {
	s.state = bits.RotateLeft64((s.state^uint64(t))*0x9e3779b97f4a7c15, 29)
}

// scramble mixes every bit of x into the whole word (the finaliser of SplitMix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// wordClass is a part of speech.
type wordClass uint8

const (
	classNone wordClass = iota // not a word of the vocabulary
	classDeterminer
	classAdjective
	classNoun
	classVerb
	classAdverb
	classPreposition
	classConjunction
	classCount
)

// grammar lists the classes that may follow a class, with repetition for weight, so that responses
// resemble sentences.
var grammar = [classCount][8]wordClass{
	classNone:        fill("DDDDDDDR"),
	classDeterminer:  fill("AAANNNNN"),
	classAdjective:   fill("NNNNNNNN"),
	classNoun:        fill("VVVVPPPC"),
	classVerb:        fill("DDDDDDRP"),
	classAdverb:      fill("PPPPPCCC"),
	classPreposition: fill("DDDDDDDA"),
	classConjunction: fill("DDDDDDDA"),
}

func fill(row string) (classes [8]wordClass) {
	for i := range classes {
		classes[i] = wordClass(strings.IndexByte("-DANVRPC", row[i]))
	}
	return classes
}

// form is a spelling of a word.
type form struct {
	token Token
	text  string
}

// word holds the forms of a word inside a line and at its start.
type word struct{ inside, opening form }

var (
	vocabulary = readVocabulary()
	classOf    = classify()
	newline    = tokenOf("\n")
)

// readVocabulary splits the word lists. Words have at most eight letters, because longer ones would be
// two tokens.
func readVocabulary() (v [classCount][]word) {
	for class, list := range wordLists {
		for _, text := range strings.Fields(list) {
			inside, opening := " "+text, strings.ToUpper(text[:1])+text[1:]
			v[class] = append(v[class], word{
				inside:  form{tokenOf(inside), inside},
				opening: form{tokenOf(opening), opening},
			})
		}
	}
	return v
}

// classify maps every form of every word to its class, so that a speech can continue in the middle of a
// sentence.
func classify() map[Token]wordClass {
	m := make(map[Token]wordClass)
	for class, words := range vocabulary {
		for _, w := range words {
			m[w.inside.token] = wordClass(class)
			m[w.opening.token] = wordClass(class)
		}
	}
	return m
}
