package service

import (
	"strings"
	"sync"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Values that may be secret are identified before validation, by their position rather than their
// correctness: a token pasted into the wrong key is still a token.

var (
	// secretKey matches a key whose value may be secret in any mapping.
	secretKey = LazyPattern(`(?i)^(secrets?|env|keys_from|hmac|.*(password|passwd|token|api_?key))$`)
	// secretFlag matches an engine argument whose value is a secret.
	secretFlag = LazyPattern(`(?i)^-.*(key|token|secret|passw)`)
	// secretName matches a key that may be a misspelled key of a secret.
	secretName = LazyPattern(`(?i)(secret|env|key|hmac|token|passw|cred)`)
	// secretInText matches text that contains a secret: --api-key=X, "--api-key X", nats://user:X@host.
	secretInText = LazyPattern(`(?i)((key|token|secret|passw)[a-z_-]*=|^-[^\s=]*(key|token|secret|passw)[a-z_-]*\s|://[^/]*@)`)
)

// harmless matches values that no secret has: short numbers, durations, sizes, IPv4 addresses and words of YAML.
var harmless = LazyPattern(`(?i)^([0-9]{1,3}(\.[0-9]{1,3}){3}(:[0-9]{1,5})?|-?[0-9]{1,5}(\.[0-9]{1,3})?(ns|us|ms|s|m|h|d|%|k|m|g|ki|mi|gi|mib|gib)?|true|false|yes|no|null|~)$`)

// plainKeys contains the keys of service.yaml that have no secret in any mapping.
var plainKeys = sync.OnceValue(func() map[string]bool {
	plain := map[string]bool{}
	for name, r := range rules {
		_, key, _ := strings.Cut(name, ".")
		known, found := plain[key]
		plain[key] = !r.secret && (known || !found)
	}
	return plain
})

// isPlainKey reports whether a key of service.yaml never has a secret.
func isPlainKey(key string) bool { return plainKeys()[key] && !secretKey().MatchString(key) }

// hideUnknown hides the values below an unknown key that may be secret: it may be a misspelled key of a secret. plain
// means that it is similar to a key without secrets: then its own value is hidden no more than that of this key, and so
// are the values of plain keys below it. Harmless values stay visible, unless their own key is one of a secret.
func (s *source) hideUnknown(n ast.Node, plain bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			s.hideUnknown(v, plain)
		}
	case *ast.MappingValueNode:
		key := keyText(n.Key)
		if secretKey().MatchString(key) {
			s.hideSecrets(n.Value, true)
			return
		}
		s.hideUnknown(n.Value, plain && isPlainKey(key))
	case *ast.SequenceNode:
		for _, v := range n.Values {
			s.hideUnknown(v, plain)
		}
	case *ast.AnchorNode:
		s.hideUnknown(n.Value, plain)
	case ast.ScalarNode:
		if !plain && !harmless().MatchString(scalarText(n)) {
			s.hideSecrets(n, true)
		}
	default:
		s.hideSecrets(n, true)
	}
}

// hideSecrets hides every value below n that may be secret. secret is true where n itself is.
func (s *source) hideSecrets(n ast.Node, secret bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			s.hideSecrets(v, secret)
		}
	case *ast.MappingValueNode:
		s.hideSecrets(n.Value, secret || secretKey().MatchString(keyText(n.Key)))
	case *ast.SequenceNode:
		for i, v := range n.Values {
			s.hideSecrets(v, secret || i > 0 && secretFlag().MatchString(scalarText(n.Values[i-1])))
		}
	case *ast.AnchorNode:
		s.hideSecrets(n.Value, secret)
	case *ast.TagNode:
		s.hideSecrets(n.Value, secret)
	case *ast.AliasNode, nil: // the target of an alias is hidden where it is defined
	default:
		text := scalarText(n)
		if secret && !formRef.matches(text) || secretInText().MatchString(text) {
			s.hideNode(n)
		}
	}
}

// hideNode hides a scalar, up to where the next token starts.
func (s *source) hideNode(n ast.Node) {
	first, last := n.GetToken(), n.GetToken()
	if lit, ok := n.(*ast.LiteralNode); ok {
		first, last = lit.Start, lit.Value.GetToken()
	}
	if first == nil || first.Position == nil {
		return
	}
	endLine, endCol := len(s.lines), endOfLine
	if next := nextToken(last); next != nil {
		endLine, endCol = next.Position.Line, next.Position.Column
	}
	s.hideRange(first.Position.Line, first.Position.Column, endLine, endCol)
}

func nextToken(t *token.Token) *token.Token {
	if t == nil || t.Next == nil || t.Next.Position == nil {
		return nil
	}
	return t.Next
}

// nearSecrets reports whether a line of an unparsable document is at or below a key whose value may
// be secret. Without a tree there is only the indentation, so it returns true in doubt.
func (s *source) nearSecrets(line int) bool {
	indent := endOfLine
	for l := min(line, len(s.lines)); l >= 1; l-- {
		text := strings.TrimLeft(s.lines[l-1], " \t-")
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if in := len(s.lines[l-1]) - len(text); in > indent {
			continue
		} else if in < indent {
			indent = in
		}
		if secretWord().MatchString(text) {
			return true
		}
	}
	return false
}

var secretWord = LazyPattern(`(?i)(secret|env|key|hmac|token|passw|args|://)`)
