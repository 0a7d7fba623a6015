"""Why an instance, a node, a workload or a rollout is as it is: data with typed subjects, never sentences.

Each class is one reason, its fields are the evidence, and `code` is the name of the class in snake case. A reason is
stored as an array that begins with its code, so hundreds of thousands of stories stay small. `schema/reason_text.py`
has the sentences, and hides subjects that a reader may not see.
"""
