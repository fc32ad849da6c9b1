package engine

// wordLists is the vocabulary of responses. A word is in one list only, has at most eight letters and is
// in lower case.
var wordLists = [classCount]string{
	classDeterminer: `the a this that each every some any one its our their your
		another most many few both such no`,
	classAdjective: `small large quiet bright early late simple complex open closed
		warm cold steady rapid gentle narrow broad clear hidden common rare modern
		ancient local distant plain useful careful patient curious honest formal
		green silver golden heavy light empty full young old long short`,
	classNoun: `river city garden teacher student letter window market engine
		harbor mountain valley bridge machine question answer number pattern
		system network signal measure table record journey story chapter method
		result reason example problem solution village forest island winter
		summer morning evening meeting project budget plan region server request
		memory token model prompt balance weight shape color sound voice paper
		library museum station train ticket road field stone metal glass water
		fire wind cloud storm season harvest bread coffee kitchen doctor nurse
		artist writer reader owner worker leader member group team family friend
		neighbor visitor language grammar sentence word idea theory practice
		history future moment decade century minute hour`,
	classVerb: `finds keeps moves holds shows gives takes makes leaves follows
		carries changes explains suggests covers joins splits measures reaches
		returns supports reduces improves compares connects contains creates
		defines delivers depends extends gathers guides helps includes informs
		learns limits matches needs offers opens prefers prepares presents
		protects provides reads reflects remains repairs reports requires
		resolves reveals saves selects serves settles shares starts studies
		teaches tests tracks trusts turns uses values visits waits writes`,
	classAdverb: `often rarely slowly quickly almost always never perhaps quite
		rather mostly nearly simply gently clearly usually barely again together
		calmly firmly freely`,
	classPreposition: `of in on at by for with from into over under near between
		beyond through across around after before during without toward along
		behind beside within against among upon`,
	classConjunction: `and but or so yet while because although when where if until
		since unless whereas`,
}
