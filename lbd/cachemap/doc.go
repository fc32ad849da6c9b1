// Package cachemap translates the cache events of engines, which are about blocks of tokens, to changes
// of prefixes of bytes, which is what the balancer's tree of prefixes (lbd/prefix) contains. No prompt is
// tokenized on a request's path: some prompts are tokenized afterwards by an engine (Learn), and what is
// learned of them holds for every engine of the model.
//
// What is exact:
//   - which blocks of tokens each engine has, from the events alone, whoever sent the prompts;
//   - that an engine has nothing (Clear), whether its blocks are known or not;
//   - which learned prompts begin with a block: blocks are compared by all their tokens, the LoRA adapter
//     and the engine's extra keys (images, cache salt), never by the hashes of one engine.
//
// What is estimated:
//   - the number of bytes of a block that ends inside a prompt. Bytes are assumed to be spread evenly
//     over the tokens behind the last point that two learned prompts have in common; there, the estimate
//     never exceeds the text that they really share;
//   - everything about prompts that were not learned, and about answers until a later prompt contains
//     them: the balancer's own tree remains as it is, which says what was sent where.
//
// A block is reachable at an engine if the engine has all blocks before it too. Only reachable blocks
// count, because an engine cannot use others.
package cachemap
